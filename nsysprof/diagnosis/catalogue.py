"""List all kinds of findings: findings about waits, and findings about other properties of steps."""

from collections.abc import Callable, Iterator

from nsysprof.diagnosis import calls, gpu_waits
from nsysprof.diagnosis.busy import Busy
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.copies import EXPOSED, LAYOUT, MEMSETS, PAGEABLE, SMALL_COPIES
from nsysprof.diagnosis.cpu_code import COMPILING, CPU_CODE, LOADER
from nsysprof.diagnosis.finding import Finding
from nsysprof.diagnosis.full_memory import full_memory
from nsysprof.diagnosis.fusion import fusion_findings
from nsysprof.diagnosis.geometry import geometry_findings
from nsysprof.diagnosis.kinds import Kind
from nsysprof.diagnosis.launch_bound import LAUNCH_BOUND, OPTIMIZER
from nsysprof.diagnosis.page_fault import page_findings
from nsysprof.diagnosis.slow_steps import between_steps, slow_step_findings
from nsysprof.diagnosis.synchronization import SYNCHRONIZATION, blocking_launches
from nsysprof.diagnosis.tensor_cores import tensor_core_findings, weight_findings

KINDS: tuple[Kind, ...] = (
    *(CPU_CODE, LOADER, COMPILING, LAUNCH_BOUND, OPTIMIZER, SYNCHRONIZATION),
    *(PAGEABLE, SMALL_COPIES, EXPOSED, LAYOUT, MEMSETS),
    *(
        calls.ALLOCATION,
        calls.UNCACHED,
        calls.PINNING,
        calls.SLEEPING,
        calls.WRITING,
        calls.WAITING_FOR_INPUT,
        calls.LOCKED,
    ),
    *(calls.COLLECTIVES, calls.MESSAGES, calls.HOST_PAGES, calls.GRAPHS, calls.GRAPHS_BY_NODE, calls.RECOMPILING),
    *(gpu_waits.LATE_RANK, gpu_waits.STREAMS, gpu_waits.LATENCY, gpu_waits.NOT_RECORDED, gpu_waits.PROFILER),
    *calls.SET_UP,
)
# What is no wait: the kinds of findings about the steps of a path on a GPU, and what gives them.
OF_STEPS: dict[str, Callable[[Case, Place], Iterator[Finding]]] = {
    "communication-exposed": gpu_waits.exposed_communication,
    "page-fault": page_findings,
    "slow-steps": slow_step_findings,
    "synchronization": blocking_launches,
    "input-wait, cpu-code": between_steps,
}
# The same of the kernels of these steps.
OF_KERNELS: dict[str, Callable[[Busy], Iterator[Finding]]] = {
    "small-grid, tiny-blocks, tail-wave, low-occupancy, spills": geometry_findings,
    "tensor-cores, misaligned": tensor_core_findings,
    "weight-bound": weight_findings,
    "unfused-attention, pointwise, training-mode, memset, casts, channels-last": fusion_findings,
    "full-memory": full_memory,
    "stream-dependency": gpu_waits.stream_findings,
}
KERNEL_KINDS = frozenset(kind for kinds in OF_KERNELS for kind in kinds.split(", "))
