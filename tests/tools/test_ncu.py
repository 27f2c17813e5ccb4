"""Finding an ncu, what it can do, and the commands that it is given."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsysprof.counters.ncu_run import CountRequest, ncu_command, ncu_import
from nsysprof.errors import NsysprofError
from nsysprof.tools import ncu as module
from nsysprof.tools.ncu import NCU_ENVIRONMENT, Ncu, chip_metrics, find_ncu, ncu_options
from tests.kit import fake_ncu

ALL = frozenset(fake_ncu.OPTIONS.split())
NCU = Ncu(Path("/n/ncu"), (2025, 3), "2025.3")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up ncu on the PATH; none is installed."""
    for name, value in fake_ncu.install(tmp_path / "bin", []).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(NCU_ENVIRONMENT, raising=False)
    monkeypatch.setattr(module, "NCU", replace(module.NCU, linux=()))
    return tmp_path / "bin" / "ncu"


def test_the_one_that_is_named_comes_first(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the environment's, then the PATH's; a folder stands for the ncu in it."""
    fake_ncu.install(tmp_path / "other", [])
    assert find_ncu() == Ncu(there, (2025, 3, 1, 0), fake_ncu.VERSION)
    monkeypatch.setenv(NCU_ENVIRONMENT, str(tmp_path / "other"))
    assert find_ncu().path == tmp_path / "other" / "ncu"
    assert find_ncu(there).path == there


def test_what_is_named_and_does_not_work_is_an_error(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With where the name came from, and how to get one; no other is taken instead."""
    with pytest.raises(NsysprofError, match="not a working ncu: no such file") as caught:
        find_ncu(tmp_path / "nowhere")
    assert "CUDA toolkit" in str(caught.value.hint)
    other = tmp_path / "ls"
    other.write_text("#!/bin/sh\necho some other tool\n")
    other.chmod(0o755)
    monkeypatch.setenv(NCU_ENVIRONMENT, str(other))
    with pytest.raises(
        NsysprofError, match=rf"\(from {NCU_ENVIRONMENT}\): not a working ncu: some other tool"
    ):
        find_ncu()


def test_without_any_the_hint_says_how_to_get_one(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several that are installed the newest is taken."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NsysprofError, match="no ncu found") as caught:
        find_ncu()
    assert "https://developer.nvidia.com/nsight-compute" in str(caught.value.hint)
    old = tmp_path / "old"
    old.write_text(there.read_text().replace("Version 2025", "Version 2022"))
    old.chmod(0o755)
    monkeypatch.setattr(module, "NCU", replace(module.NCU, linux=(str(old), str(there))))
    assert find_ncu().path == there


def test_an_ncu_that_cannot_filter_ranges_is_too_old(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is named with its version."""
    assert ncu_options(find_ncu()) >= ALL
    monkeypatch.setenv("FAKE_NCU_LACKS", "--nvtx-include")
    with pytest.raises(NsysprofError, match=r"2025\.3\.1\.0 .* is too old: it has no --nvtx-include"):
        ncu_options(find_ncu())


def test_the_metrics_are_those_that_every_gpu_has(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has its list; the second line of a description is no metric."""
    assert chip_metrics(find_ncu()) == {*fake_ncu.DEFAULT_METRICS}
    told = (
        "Device NVIDIA H200 (GH100)\n-----  ----\nMetric Name  Metric Type\ndram__bytes_read  Counter  byte  # of\n"
        "             bytes\nFBSP.TriageCompute.dramc__cycles  Counter\nlts__t_bytes  Counter\n"
        "Device NVIDIA A30 (GA100)\nlts__t_bytes  Counter\ndram__bytes  Counter\n"
        "==PROF== Note that these metrics must be appended with a valid suffix\n"
    )
    done = subprocess.CompletedProcess([], 0, told, "")
    monkeypatch.setattr(module, "run_tool", lambda *arguments, **how: done)
    assert chip_metrics(NCU) == {"lts__t_bytes"}


def test_without_a_gpu_ncu_says_so(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are in the error."""
    monkeypatch.setenv("FAKE_NCU", "no device")
    with pytest.raises(NsysprofError, match=r"knows no metric of a GPU here: No CUDA devices found\."):
        chip_metrics(find_ncu())


def command(options: frozenset[str] = ALL, **how: Any) -> list[str]:
    """The ncu command for a program `p a`."""
    return ncu_command(
        CountRequest(("p", "a"), NCU, **how), options, ["m.sum", "n.avg"], Path("/tmp/50%/out")
    )


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
        with pytest.raises(NsysprofError, match="is nsysprof's own"):
            command(extra=(argument,))


def test_a_report_is_printed_with_names_in_full() -> None:
    """Simplified names, the default of newer ones, are not those of Nsight Systems; older ones know no other."""
    assert ncu_import(ALL, Path("r"))[-1] == "--rename-kernels=off"
    assert "--rename-kernels=off" not in ncu_import(ALL - {"--rename-kernels"}, Path("r"))
