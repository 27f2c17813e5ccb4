"""The plan of a sweep: presets as they are published, options, what is refused, and how much memory it may take."""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from nsysprof.bench import sweep
from nsysprof.bench.sweep import PRESETS, BenchPreset, Grid, bench_plan, find_preset
from nsysprof.errors import NsysprofError
from nsysprof.formats.workload import ask_workload

WORKLOADS = Path(__file__).parents[2] / "workloads"
KNOWN = (
    *("math", "math_reduced", "flash", "efficient", "cudnn", "auto", "naive", "flex"),
    *("flash_attn", "flash_attn_4"),
    *(f"tiled_o{stage}" for stage in range(7)),
)


@pytest.fixture(scope="module", autouse=True)
def _a_workload_is_asked_once() -> Iterator[None]:
    """Each answer takes a process that imports torch; the same is asked for many presets."""
    known: dict[str, Any] = {}

    def asked(*what: Any) -> Any:
        key = repr(what)
        return deepcopy(known[key] if key in known else known.setdefault(key, ask_workload(*what)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "ask_workload", asked)
        yield


def planned(workload: str, grids: Sequence[Grid], **how: Any) -> dict[str, Any]:
    """The plan for a shipped workload."""
    return bench_plan(WORKLOADS / f"{workload}.py", grids, **how)[0]


def configurations(preset: BenchPreset) -> list[dict[str, Any]]:
    """What a preset comes to."""
    cases = planned(preset.workload, preset.grids)["configurations"]
    assert isinstance(cases, list)
    return cases


def shapes(name: str) -> set[tuple[Any, ...]]:
    """Batch, heads, length, head dimension, type and mask of every configuration of a preset."""
    keys = ("batch", "heads", "seq", "head_dim", "dtype", "causal")
    return {tuple(each[key] for key in keys) for each in configurations(PRESETS[name])}


PUBLISHED: dict[str, set[tuple[Any, ...]]] = {
    "math-vs-flash": {(1, 8, seq, 64, "fp16", True) for seq in (1024, 2048, 4096)},
    "baseline": {(32, 8, seq, 64, "fp16", False) for seq in (128, 256, 512, 1024, 2048)}
    | {(batch, 8, 512, 64, "fp16", False) for batch in (8, 16, 32, 64)}
    | {(32, heads, 512, 64, "fp16", False) for heads in (4, 8, 16)},
    "long": {(1, 8, 2**power, 64, "fp16", True) for power in range(10, 16)},
    "single-head": {(1, 1, seq, 64, "fp32", False) for seq in (512, 1024, 1536, 2048)},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_is_the_sweep_of_its_name(name: str) -> None:
    """Every shape of it, none besides, and none twice where its parts overlap."""
    assert shapes(name) == PUBLISHED[name]
    assert len(configurations(PRESETS[name])) == len(PUBLISHED[name])


def test_math_vs_flash_is_these_two() -> None:
    """Nothing else competes, so that nothing else has to fit into memory."""
    assert [each["backends"] for each in configurations(PRESETS["math-vs-flash"])] == [["math", "flash"]] * 3


def test_scaling_is_there_as_published_and_all_in_half_precision() -> None:
    """fp32 has naive and auto, fp16 has these and flash; the two types of a length follow one another."""
    cases = configurations(PRESETS["scaling"])
    assert PRESETS["scaling"].workload == "transformer_block"
    backends = {each["dtype"]: set(each["backends"]) for each in cases}
    assert backends == {"fp32": {"naive", "auto"}, "fp16": {"naive", "auto", "flash"}}
    lengths = [each["seq"] for each in cases]
    assert lengths == sorted(lengths)
    assert [each["dtype"] for each in cases[:2]] == ["fp32", "fp16"]


def test_every_preset_has_backends_that_the_workloads_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are those of workloads/_attention.py; what the options refuse is what is not in there."""
    monkeypatch.syspath_prepend(str(WORKLOADS))
    from _attention import BACKENDS

    assert set(KNOWN) == set(BACKENDS)
    for name, preset in PRESETS.items():
        modes = [preset.mode] if preset.mode else []
        plan, _ = bench_plan(WORKLOADS / f"{preset.workload}.py", preset.grids, modes)
        whole, _ = bench_plan(WORKLOADS / f"{preset.workload}.py", find_preset(name, full=True).grids)
        some, all_of_them = ({each["id"] for each in made["configurations"]} for made in (plan, whole))
        assert some < all_of_them


def test_the_plan_says_what_is_measured_and_how() -> None:
    """Its keys are what the program that measures reads."""
    how = {"device": "cpu", "seed": 3, "samples": 50, "ci_width": 0.02, "warm_cache": True, "graph": False}
    grid = {"backend": ["flash", "math", "flash"], "seq": [8, 4], "dtype": ["fp32"], "causal": False}
    assert planned("sdpa", [grid], **how) == {
        "schema": "nsysprof-bench-plan/1",
        "workload": "sdpa",
        "device": "cpu",
        "seed": 3,
        "backward": False,
        "runs": 1,
        "samples": 50,
        "ci_width": 0.02,
        "min_sample_ns": 20_000,
        "warm_cache": True,
        "graph": False,
        "configurations": [
            {
                "id": f"B1.H8.S{seq}.D64.fp32.full",
                **{"batch": 1, "heads": 8, "seq": seq, "head_dim": 64, "dtype": "fp32", "causal": False},
                **{"mask": "none", "kv_heads": 0, "kv_seq": 0, "dropout": 0.0, "tile_keys": 0, "score_scale": 1.0},
                "backends": ["flash", "math"],
            }
            for seq in (4, 8)
        ],
    }
    block = planned("transformer_block", [{}], training=True)
    assert block["train"] is True
    assert "backward" not in block


def test_an_unknown_name_is_reported_with_the_valid_ones() -> None:
    """Backends and presets; all unknown ones at once."""
    with pytest.raises(NsysprofError, match=r"no backend 'flash2', 'maths'") as refused:
        planned("sdpa", [{"backend": ["flash2", "math", "maths"]}])
    assert refused.value.hint == f"--backend is one of: {', '.join(KNOWN)}"
    with pytest.raises(NsysprofError, match="no preset 'base'") as refused:
        find_preset("base")
    assert refused.value.hint == f"--preset is one of: {', '.join(PRESETS)}"


def estimates(workload: str, *grids: Grid, **how: Any) -> dict[tuple[Any, ...], int]:
    """The memory that each point may need, by backend, length, data type and batch."""
    _, described = bench_plan(WORKLOADS / f"{workload}.py", grids, **how)
    return {
        (backend, *(at[name] for name in ("seq", "dtype", "batch"))): at["cost"]["held_bytes"][backend]
        for at in described["configurations"]
        for backend in at["backends"]
    }


# Peak bytes of one causal call at B1 H8 D64 in fp16, published for another GPU (in units of 1,000 or 1,024 squared).
MEASURED: dict[tuple[str, int], float] = {
    ("math", 1024): 127.13e6,
    ("math", 2048): 462.14e6,
    ("math", 4096): 1780.16e6,
    ("flash", 2048): 16.13e6,
    ("flash", 4096): 24.13e6,
}


def test_the_estimate_of_memory_is_of_the_right_size() -> None:
    """Within a factor of two of what was measured, besides 8 MB that libraries hold there."""
    held = estimates("sdpa", {"backend": ["math", "flash"], "seq": [1024, 2048, 4096]})
    for (backend, seq), measured in MEASURED.items():
        assert 0.5 < held[backend, seq, "fp16", 1] / (measured - 8e6) < 2, (backend, seq)


def test_the_estimate_grows_with_what_it_depends_on() -> None:
    """The square of the length for what holds the scores, the length for what does not; training needs more."""
    long: Grid = {"backend": ["naive", "flash"], "seq": [4096, 8192]}
    wide: Grid = {"backend": ["naive"], "seq": [4096], "dtype": ["fp32"]}
    short: Grid = {"backend": ["math", "flash"], "seq": [512], "batch": [1, 4]}
    held = estimates("sdpa", long, wide, short)
    assert held["naive", 8192, "fp16", 1] / held["naive", 4096, "fp16", 1] == pytest.approx(4, rel=0.02)
    assert held["flash", 8192, "fp16", 1] == 2 * held["flash", 4096, "fp16", 1]
    assert held["naive", 4096, "fp32", 1] == 2 * held["naive", 4096, "fp16", 1]
    assert held["math", 512, "fp16", 4] == 4 * held["math", 512, "fp16", 1]
    for workload in ("sdpa", "transformer_block"):
        called, trained = (estimates(workload, short, training=training) for training in (False, True))
        assert all(trained[point] > size for point, size in called.items())


def test_ids_are_unique_and_tell_all() -> None:
    """Two configurations that differ in anything have different names."""
    grids = [
        {
            **{"batch": [1, 2], "heads": [4, 8], "seq": [16, 32], "head_dim": [64, 128], "backend": ["math"]},
            **{"dtype": ["fp16", "bf16", "fp32"], "causal": causal},
        }
        for causal in (True, False)
    ]
    cases = planned("sdpa", grids)["configurations"]
    names = [each["id"] for each in cases]
    assert len(set(names)) == len(names) == 96
    assert all(re.fullmatch(r"B\d+\.H\d+\.S\d+\.D\d+\.(fp16|bf16|fp32)\.(causal|full)", name) for name in names)
