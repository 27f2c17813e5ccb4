"""The commands that ncu is given."""

from pathlib import Path
from typing import Any

import pytest

from nsysprof.counters.ncu_run import CountRequest, kernels_counted, ncu_command, ncu_import
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import Ncu
from tests.kit import fake_ncu

ALL = frozenset(fake_ncu.OPTIONS.split())
NCU = Ncu(Path("/n/ncu"), (2025, 3), "2025.3")


def command(options: frozenset[str] = ALL, **how: Any) -> list[str]:
    """The ncu command for a program `p a`."""
    return ncu_command(CountRequest(("p", "a"), NCU, **how), options, ["m.sum", "n.avg"], Path("/tmp/50%/out"))


def test_clocks_and_caches_are_left_alone() -> None:
    """The boost of tensor cores too; where clocks may be set, ncu chooses it. A % of a folder's name is doubled."""
    shown = command()
    assert shown[0] == "/n/ncu"
    assert shown[-4:] == ["--metrics=m.sum,n.avg", "--export=/tmp/50%%/out", "p", "a"]
    assert {"--cache-control=none", "--clock-control=none", "--pipeline-boost-state=dynamic"} <= {*shown}
    assert not any(each.startswith("--nvtx-include") for each in shown)
    shown = command(cache_control="all", clock_control="base")
    assert {"--cache-control=all", "--clock-control=base"} <= {*shown}
    assert not any(each.startswith("--pipeline") for each in shown)


def test_ranges_of_other_threads_are_asked_for_unless_strict() -> None:
    """PyTorch runs backward on a thread of its own; an ncu that cannot do that is not asked."""
    scope = "--nvtx-push-pop-scope=process"
    assert scope in command()
    assert scope not in command(threads="strict")
    assert scope not in command(ALL - {"--nvtx-push-pop-scope"})


@pytest.mark.parametrize(("glob", "pattern"), [
    ("RUN::*", "RUN::"),
    ("RUN::math::S1024/iter0", "RUN::math::S1024"),
    ("step 3", "step 3"),
    ("a.b,c@d+(e)*", "a.b.c.d..e."),
    ("*iter", ".*"),
    (r"a\/b", "a."),
    ("[ab]c", ".*"),
])  # fmt: skip
def test_a_glob_becomes_expressions_that_match_more(glob: str, pattern: str) -> None:
    """Push/pop ranges and start/end ranges of every domain; nothing that has a meaning for ncu is left."""
    filters = [each for each in command(select=glob) if each.startswith("--nvtx-include")]
    assert filters == [f"--nvtx-include=regex:.*@{pattern}/", f"--nvtx-include=regex:.*@{pattern}"]


def test_further_arguments_take_the_place_of_the_same_option() -> None:
    """Not of those that say where the results go."""
    shown = command(extra=("--replay-mode=application", "--devices=0"))
    assert "--devices=0" in shown
    assert [each for each in shown if each.startswith("--replay-mode")] == ["--replay-mode=application"]
    for argument in ("--export=x", "-o", "-ox", "--csv", "--metrics=a", "-i"):
        with pytest.raises(NsysprofError, match="is set by nsysprof itself"):
            command(extra=(argument,))


def test_a_report_is_printed_with_names_in_full() -> None:
    """Simplified names, the default of newer ones, are not those of Nsight Systems; older ones know no other."""
    assert ncu_import(ALL, Path("r"))[-1] == "--rename-kernels=off"
    assert "--rename-kernels=off" not in ncu_import(ALL - {"--rename-kernels"}, Path("r"))


@pytest.mark.parametrize("program", [True, False])
def test_a_line_per_kernel_becomes_a_count(program: bool) -> None:
    """However the output is cut: kernels are counted, warnings of ncu pass, and of a workload nothing else."""
    profiled = [f'==PROF== Profiling "k" - {number}: 0%....50%....100% - 8 passes\n' for number in range(250)]
    text = "".join(["==PROF== Connected to process 7\n", "math 5.66 s\n", *profiled, "==WARNING== odd\n", "done"])
    shown: list[str] = []
    with kernels_counted(shown.append, program=program) as take:
        for at in range(0, len(text), 37):
            take(text[at : at + 37])
    counts = ["  counting the first kernel\n", "  10 kernels counted\n", "  100 kernels counted\n"]
    own = ["math 5.66 s\n"] if program else []
    assert shown == [*own, *counts, "==WARNING== odd\n", *(["done\n"] if program else [])]
