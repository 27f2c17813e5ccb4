"""List the tables, columns and properties allowed in a scrubbed copy: they describe only the work and the hardware.

Everything else is removed, including additions by a later nsys, another tool or a user. Names are as in nsys 2019 to
2026.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

_TABLES = """
ANALYSIS_DETAILS COMPOSITE_EVENTS CUBLAS_EVENTS CUDA_* CUDNN_EVENTS CUPTI_ACTIVITY_KIND_* DIAGNOSTIC_EVENT ENUM_*
EXPORT_META_DATA FECS_EVENTS GPU_CONTEXT_SWITCH_EVENTS GPU_METRICS MEMORY_TRANSFER_EVENTS META_DATA_CAPTURE
META_DATA_EXPORT MPI_* NET_IB_SWITCH_METRIC NET_NIC_METRIC NVTX_* OPENMP_EVENT_KIND_* OSRT_API OSRT_CALLCHAINS
PERF_EVENT_* PROCESSES PROFILER_OVERHEAD SAMPLING_CALLCHAINS SCHED_EVENTS StringIds TARGET_INFO_CUDA_* TARGET_INFO_GPU
TARGET_INFO_GPU_METRICS TARGET_INFO_NETWORK_METRICS TARGET_INFO_NVTX_CUDA_* TARGET_INFO_PERF_COUNTER
TARGET_INFO_PROCESS TARGET_INFO_PROCESSES TARGET_INFO_SESSION_START_TIME TARGET_INFO_SYSTEM_ENV ThreadNames UCP_*
UnwindMethodType
"""
# Columns of these tables that hold numbers; a text in one of them goes.
_NUMBERS = """
address alignTo allocationGlobalHandle apiCallId argumentsId arrayOrUnionDetail asyncEngines blockX blockY
blockZ bytes bytesProcessed cacheConfig callchainId category clockRate clusterSchedulingPolicy clusterX
clusterY clusterZ color commHandle componentId computeCapabilityMajor computeCapabilityMinor computeMajor
computeMinor constantMemory constantMemorySize contextId copyCount copyKind coreClockRate correlationId count
counterId cpu cpuCycles CpuInstruction cuContextId cudaId cuDevice cuDeviceId cuStreamId demangledName
deprecatedSrcId deprecatedSyncType deviceId DeviceType dmaBuffer domainId doubleValue dstContextId dstDeviceId
dstKind duration dynamicSharedMemory end endedAt endGlobalTid eventClass eventId eventKind eventSyncId
eventType faultAccessType flag flags floatValue funcName globalId globalMemoryBandwidth
globalMemorySize globalPid globalTid globalVid gpu gpuId graphExecId graphId graphNodeId greenContextId gridId
gridX gridY gridZ groupRoot groupRootUid hwId id idx importedMemoryPoolAddress importedMemoryPoolProcessId
int32Value int64Value isDiscrete isFlag isGreenContext isSchedIn jsonTextId kernelMode kernelName kind
l2CacheSize launchType lineNo localMemoryPerThread localMemoryPoolAddress localMemoryPoolReleaseThreshold
localMemoryPoolSize localMemoryPoolUtilizedSize localMemoryTotal localRank mangledName maxActiveClusters
maxBlockDimX maxBlockDimY maxBlockDimZ maxBlocksPerMultiprocessor maxBlocksPerSm maxGridDimX maxGridDimY
maxGridDimZ maxIPC maxPotentialClusterSize maxRegistersPerBlock maxRegistersPerMultiprocessor
maxRegistersPerSm maxSharedMemoryPerBlock maxSharedMemoryPerMultiprocessor maxShmemPerBlock
maxShmemPerBlockOptin maxShmemPerSm maxThreadsPerBlock maxWarpsPerMultiprocessor maxWarpsPerSm memKind
memoryBandwidth memoryOperationType memoryTransferType metricId metricsIdx metricsListId migrationCause
minBytesToKeep module nameEnum nameId nestingLevel newTaskId nextTaskId nicId nodeMask nullStreamId number
numberOfPageFaults numEntries numGangs numMemcpyEngines numMultiprocessors numThreadsPerWarp numTpcs
numWorkers offset operationType originalFaultPc originalGraphId originalGraphNodeId originalIP overheadType
parallelId parentContextId parentHandle parentTaskId payloadSize pc pid poolType priority priorTaskId
priorTaskStatus processId pwGpuId qmdBulkReleaseDone qmdLastCtaDone qmdPreexitDone rangeId rank recvSize
registersPerThread remoteRank requestHandle returnValue revision rootRank schemaId seqNo severity
sharedMemoryExecuted sharedMemoryLimitConfig sharedMemoryRequestedPercentage shortName size smCount smMajor
smMinor source sourceId specialEntry srcContextId srcDeviceId srcFile srcKind stackDepth start startedAt
startTime staticSharedMemory stopTime streamId symbol syncType systemClockNs tag taskId textId threadBlock
threadId threadsPerWarp threadState threadType thumbCode timestamp timestampType totalMemory type typeId
uint32Value uint64Value unresolved unresolvedFaultPc unwindMethod utcEpochNs value varName vectorLength
virtualAddress vmId waitId workqueueConcurrencyLimit workqueueResourceId workqueueSharingScope
"""
# Names of work and facts of hardware: out of them is cut only what is surely a secret.
_NAMES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("tensorSizeMinusOneElements",),
    "ENUM_*": ("name", "label"),
    "NVTX_EVENTS": ("text",),
    "NVTX_PAYLOAD_*": ("name", "description"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": ("tpcMask",),
    "TARGET_INFO_CUDA_GPU": ("name", "pciBusId", "chipName"),
    "TARGET_INFO_GPU": ("name", "busLocation", "chipName", "ctxswDevPath", "ctrlDevPath"),
    "TARGET_INFO_GPU_METRICS": ("typeName", "metricName"),
    "TARGET_INFO_NETWORK_METRICS": ("name", "description", "unit"),
    "TARGET_INFO_NVTX_CUDA_*": ("name",),
    "TARGET_INFO_PERF_COUNTER": ("name", "description", "unit"),
    "UnwindMethodType": ("name",),
}
_TEXTS = {
    "*_META_DATA": ("name", "value"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": ("name",),
    "DIAGNOSTIC_EVENT": ("text",),
    "META_DATA_*": ("name", "value"),
    "MPI_COMMUNICATORS": ("members",),
    "NVTX_EVENTS": ("jsonText", "binaryData"),
    "PROCESSES": ("name",),
    "StringIds": ("value",),
    "TARGET_INFO_SESSION_START_TIME": ("utcTime", "localTime"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
}
# Columns that stay, for those who read them, without what stands in them: which GPU it is of all, and the host.
EMPTIED = {
    "TARGET_INFO_GPU": ("uuid", "luid"),
    "TARGET_INFO_CUDA_GPU": ("uuid",),
    "TARGET_INFO_CUDA_DEVICE": ("uuid",),
    "TARGET_INFO_SYSTEM_ENV": ("devStateName",),
}
LOCAL = b"Local (CLI)"  # what stands in a place of a host where it was this one
_PROPERTIES = re.compile(
    r"""(?x)
(PROCESS_\d+:)? (COLLECT_(BLOCK|BLOCK_PHASE|CPU|CUDA|DX11|DX12|NVMEDIA|NVTX|OPENSHMEM|THREAD_STATE|VIDEO_API|VULKAN|WARP
    |WARP_PHASE|GPU_CTX_SW)_TRACE | COLLECT_(GL_WORKLOAD|GPU_MEMORY_USAGE|SLI_EVENTS|UVM_[CG]PU_PAGE_FAULTS|VSYNC
    |WDDM_EVENTS) | COMMAND | CUDA_(FLUSH_ON_CUDA_PROFILER_STOP|FLUSH_PERIOD|FLUSH_PERIODICALLY|SKIP_SOME_API_CALLS
    |TRACE_SCOPE) | CUDA_GRAPH_TRACE_OPTIONS:(MODE|TRACE_DEVICE_GRAPH_LAUNCH) | HOW_TO_ATTACH | LAUNCH_AS_ROOT | PID)
| ALLOW_SEND_ONLY_MODE | APPLICATION_PID | BANDWIDTH_(RATE_HZ|VERSION) | CAPTURE_EVENT_TYPE | DEVICE_(ID|TYPE)
| DISABLE_TIME_SYNC | FORCE_ARCH_TIMER | GRAPHICS_TRACE_OPTIONS:(COLLECT_\w+|KHRDEBUG_GPU_MAXDEPTH) | HAS_ANNOTATIONS
| HOTKEY_(ENABLED|VALUE) | INCLUDE_CHILDREN | IN_APP_FREQ_MODE | NVTX_OPTIONS:(NVTX_DOMAIN_FILTER_MODE_INCLUDE
    |NVTX_DOMAIN_FILTER_STRING|TRACE_NVTX_RANGE_HOT_KEY(_VALUE)?) | POWER_RATE_SCAN_FREQ | RATE_HZ | RESUME
| LINUX_PERF_OPTIONS:(COLLECTION_MODE|COLLECT_\w+|CPU_IP_\w+|EVENT_COUNT_INTERVAL_MS|SAMPLES_PER_BACKTRACE
    |SAMPLING_PERIOD)
| OS_RUNTIME_OPTIONS:(BACKTRACES_THRESHOLD_NS|COLLECT_BACKTRACES|DURATION_THRESHOLD_NS) | RUN_DURATION_(FRAMES|MS)
| SAMPLE_ALL_TASKS | SHOW_BACKTRACE | START_(DELAY_MS|FRAME_VALUE|TRIGGER) | STOP_TRIGGER
| SYMBOL_RESOLUTION_OPTIONS:RESOLVE_SYMBOLS | THREAD_STATE_SCAN_FREQ | TRACE_(AFTER_FORK_BEFORE_EXEC|ALL_TASKS)
| USE_(DWARF|FRAME_POINTERS|LBRS|LINUX_PERF|UNWIND_TABLES)
| EXPORT_(APPEND|ARCH|CONFIG_TIME_SHIFT|LAZY|OVERWRITE|PLATFORM|PRODUCT_(DATE|NAME|VERSION)|TIME(_LOCAL|_UTC)?
    |SCHEMA_VERSION(_CKSUM|_MAJOR|_MICRO|_MINOR)?)
| EXPORT_PARAM_(APPEND|EXPORT_TYPE|INCLUDE_BLOBS|INCLUDE_JSON|LAZY|OVERWRITE|PROGRESS|TABLES_TO_EXPORT|TIMES_TO_EXPORT
    |TIME_NORMALIZE|TIME_SHIFT|USE_SHUFFLE)
| (Arm|Cpu)Cores | CNTFRQMHz | Cpu(Architecture|Description|EmcSpeedMhz|Info|SpeedMhz) | CudaDriverVersion
| EventLibSourcesInfo | ExportLevel | Gpu(Info|MetricsConfig|MetricsSupportedGpus) | HardwarePlatform
| Has(Backtraces|BacktracingAlgorithms|CpuCycles|DiscreteGpu|ThreadStateEvents|MutualL\d+CacheEvents|\w+Events
    |L\d+Cache(Data|Instruction)(Read|Write)?Misses)
| Is(X\d+BasedDevice|Device(Caps|Props)Updated|GameRecordingModeOn|PersistentDevice|RootEnabled) | KernelVersion
| Linux(ParanoidLevel|PerfInfo) | ModuleVersion | NvDriverVersion | OfedDriverVersion | OsDescription
| QnxKernelTraceInfo | SocInfo | Software(Platform|ReleaseVersion) | Supported(\d+Bit)?ABIs | SupportedFTraceEvents
| Supports(ArchTimer|CpuCtxsw|CpuFrequency|DX\d+|ForceArchTimer|Gpu(Ctxsw|Metrics)|Isr|LBR|LinuxPerf|MPI|NCCL
    |NicMetrics(Collection)?|OpenSHMEM|OpenXR|PmuCounters|PythonBacktraceSampling|Sampling|Sli|SocMetrics|SyscallTrace
    |UCX|UMPageFaults|Vulkan(SC)?|XmcClients)
| TargetInstallDir | dptiSupportsHES"""
)


def known_table(table: str) -> bool:
    """Whether a table may stay."""
    return matches(table, _TABLES.split())


def known_column(table: str, column: str) -> str | None:
    """Return the content that a column of a known table may have (``text`` or ``number``), or None for an unknown
    column.
    """
    texts = [*_columns(_NAMES, table), *_columns(_TEXTS, table), *EMPTIED.get(table, ())]
    return "text" if column in texts else "number" if column in _NUMBERS.split() else None


def is_name(table: str, column: str) -> bool:
    """Return whether a column contains names of work or hardware."""
    return column in _columns(_NAMES, table)


def known_property(name: str) -> bool:
    """Return whether a property of the capture, the export or the system may stay."""
    return _PROPERTIES.fullmatch(name) is not None


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name matches one of the patterns with ``*`` and ``?``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _columns(among: dict[str, tuple[str, ...]], table: str) -> list[str]:
    return [column for pattern, columns in among.items() if fnmatchcase(table, pattern) for column in columns]
