"""Range paths and merged paths: by example, and against plain tuples of names; which instances `--skip` leaves out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.attribution.paths import (
    DEFAULT_MERGE,
    Paths,
    _group,
    merged_names,
    merged_paths,
    names_step,
    range_paths,
    split_path,
    warm_up,
)
from nsysprof.core.nesting import ancestors_or_self, depths
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reference import refer
from tests.kit.reports import attributed
from tests.kit.trace import Range


def paths_of(path: Path) -> Paths:
    return range_paths(attributed(path))


def merged_texts(path: Path, merge: Sequence[str] | None = DEFAULT_MERGE) -> list[str]:
    """The merged path of each range, in the order of the ranges."""
    paths = paths_of(path)
    merged = merged_paths(paths, merge)
    texts = merged.texts()
    return [texts[code] for code in merged.of[paths.of].tolist()]


def test_a_path_is_the_names_from_the_outermost_range(trace: MakeTrace) -> None:
    """Nested ranges are joined by slashes; two instances with the same names are one path."""
    path = trace(Range("epoch", 0, 90), Range("step", 10, 20), Range("step", 30, 40), Range("mm", 32, 33), duration=999)
    paths = paths_of(path)
    assert paths.texts() == ["epoch", "epoch/step", "epoch/step/mm"]
    assert paths.of.tolist() == [0, 1, 1, 2]
    assert (paths.parent.tolist(), paths.depth.tolist()) == ([-1, 0, 1], [0, 1, 2])


def test_equal_names_under_different_parents_are_different_paths(trace: MakeTrace) -> None:
    """`a/x` and `b/x` are not one row, whatever they are called."""
    path = trace(Range("a", 0, 9), Range("x", 1, 2), Range("b", 10, 19), Range("x", 11, 12), Range("x", 20, 21))
    assert paths_of(path).texts() == ["a", "a/x", "b", "b/x", "x"]


def test_a_range_nested_in_its_own_name_is_a_longer_path(trace: MakeTrace) -> None:
    """A range inside one of the same name is not counted in the outer one's path."""
    path = trace(Range("f", 0, 9), Range("f", 1, 8), Range("f", 2, 7))
    assert paths_of(path).texts() == ["f", "f/f", "f/f/f"]


def test_equal_names_of_different_domains_and_kinds_are_different_paths(trace: MakeTrace) -> None:
    """Domain and kind tell paths apart that read the same."""
    path = trace(
        Range("x", 0, 1, domain=1),
        Range("x", 2, 3, domain=2),
        Range("x", 4, 5, domain=1, kind="start_end"),
        duration=999,
    )
    assert paths_of(path).texts() == ["x", "x", "x"]


def test_a_start_end_range_inside_a_push_pop_range_has_a_path_of_its_own(trace: MakeTrace) -> None:
    """Windows do not nest: their path is their name."""
    assert paths_of(trace(Range("a", 0, 9), Range("w", 1, 2, kind="start_end"))).texts() == ["a", "w"]


def test_a_slash_in_a_name_is_escaped(trace: MakeTrace) -> None:
    """The name `x/y` and a `y` inside an `x` are told apart in text."""
    path = trace(Range("x/y", 0, 9), Range("x", 10, 19), Range("y", 11, 12))
    assert paths_of(path).texts() == [r"x\/y", "x", "x/y"]


def test_a_backslash_at_the_end_of_a_name_is_no_escape(trace: MakeTrace) -> None:
    r"""A `b` inside a range `a\` and a range `a/b` are different paths, and so are their texts."""
    path = trace(Range("a\\", 0, 9), Range("b", 1, 2), Range("a/b", 10, 19), Range("a\\/b", 20, 29))
    texts = paths_of(path).texts()
    assert len(texts) == 4
    assert len(set(texts)) == 4


def test_paths_equal_tuples_of_names() -> None:
    """On a tree by chance, with wrong hashes made likely by few names, rows share a path when their chains do."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(0, 300))
        parent = np.array([rng.integers(max(-1, i - 8), i) if i else -1 for i in range(count)], np.int32)
        name, kind = rng.integers(0, 3, count).astype(np.int32), rng.integers(0, 2, count).astype(np.uint8)
        chains: list[tuple[object, ...]] = []
        for i in range(count):
            chains.append((*(chains[parent[i]] if parent[i] >= 0 else ()), (int(name[i]), int(kind[i]))))
        found = _group(parent, name, kind, ["a", "b", "c"])
        codes = {chain: code for code, chain in enumerate(dict.fromkeys(chains))}
        assert found.of.tolist() == [codes[chain] for chain in chains], seed
        assert found.depth.tolist() == [len(chain) - 1 for chain in codes], seed
        assert found.parent.tolist() == [codes.get(chain[:-1], -1) for chain in codes], seed


def test_paths_equal_the_reference(trace: MakeTrace) -> None:
    """On reports by chance every range has the path of its names, in order of first appearance."""
    for seed in range(40):
        path = trace(*random_report(seed))
        expected = refer(path).paths
        codes = {chain: code for code, chain in enumerate(dict.fromkeys(expected))}
        assert paths_of(path).of.tolist() == [codes[chain] for chain in expected], seed


def test_numbered_siblings_merge(trace: MakeTrace) -> None:
    """`iter0`, `iter 1` and `step#12` become `iter*` and `step*`; what only begins like them stays."""
    names = ["iter0", "iter 1", "iter_22", "step#12", "step", "iterate", "iter0_warm", "step-3", "step: 4"]
    path = trace(*(Range(name, 10 * i, 10 * i + 5) for i, name in enumerate(names)))
    assert merged_texts(path) == [
        *("iter*", "iter*", "iter*", "step*", "step", "iterate", "iter0_warm", "step*", "step*")
    ]


def test_merged_ranges_stay_under_their_parents(trace: MakeTrace) -> None:
    """`a/iter0` and `a/iter1` are one row, and `b/iter0` is another."""
    path = trace(
        Range("a", 0, 9), Range("iter0", 1, 2), Range("iter1", 3, 4), Range("b", 10, 19), Range("iter0", 11, 12)
    )
    assert merged_texts(path) == ["a", "a/iter*", "a/iter*", "b", "b/iter*"]


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm, op_id = 17",
        "aten::mm, seq = 3",
        "aten::mm, op_id = 17, sizes = [[2, 3], []], input_op_ids = [(1, 0)]",
        "aten::mm, sizes = [[2, 3]]",
        "aten::mm, stashed seq = 9",
    ],
)
def test_per_call_ids_of_autograd_ranges_go(trace: MakeTrace, name: str) -> None:
    """What PyTorch's profiler appends from call to call is no part of the merged path."""
    assert merged_texts(trace(Range(name, 0, 9))) == ["aten::mm"]


def test_other_commas_stay(trace: MakeTrace) -> None:
    """A name with a comma that is no per-call id keeps all of it."""
    assert merged_texts(trace(Range("load, then mm = 3", 0, 9))) == ["load, then mm = 3"]


def test_a_glob_of_the_user_merges_anything(trace: MakeTrace) -> None:
    """Another glob's star stands for any text, and the default globs are then off unless given too."""
    path = trace(Range("layer.3.mlp", 0, 9), Range("layer.x", 10, 19), Range("iter3", 20, 29))
    assert merged_texts(path, ["layer.*"]) == ["layer.*", "layer.*", "iter3"]
    assert merged_texts(path, ["layer.*", "iter*"]) == ["layer.*", "layer.*", "iter*"]


def test_merging_can_be_switched_off(trace: MakeTrace) -> None:
    """Without merging the merged path is the path, per-call ids and all."""
    path = trace(Range("iter0", 0, 9), Range("aten::mm, op_id = 17", 1, 2))
    assert merged_texts(path, None) == ["iter0", "iter0/aten::mm, op_id = 17"]


def test_a_path_a_thousand_deep_is_quick_and_right(trace: MakeTrace) -> None:
    """No recursion: 1,500 ranges in one another have depths 0 to 1,499."""
    paths = paths_of(trace(*(Range("step", i, 9_999) for i in range(1_500)), duration=10_000))
    assert paths.depth.tolist() == list(range(1_500))
    assert paths.texts()[-1] == "/".join(["step"] * 1_500)


def test_deep_paths_are_cut_short(trace: MakeTrace) -> None:
    """The text of 20,000 paths in one another takes a few megabytes; both ends and the depth are in each."""
    paths = paths_of(trace(*(Range(f"r{i}", i, 99_999 - i) for i in range(20_000)), duration=100_000))
    texts = paths.texts()
    assert paths.too_long
    assert texts[1] == "r0/r1"
    assert texts[-1].startswith("r0/r1/r2/")
    assert "[20,000 names deep]" in texts[-1]
    assert texts[-1].endswith("/r19998/r19999")
    assert sum(map(len, texts)) < 4_000_000


def test_ancestors_and_depths_equal_a_walk() -> None:
    """Both tree functions give what walking up from each row gives."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(0, 60))
        parent = np.array([rng.integers(-1, i) if i else -1 for i in range(count)], np.int32)
        marked = rng.random(count) < 0.1
        walks: list[list[int]] = []
        for i in range(count):
            walks.append([i, *(walks[parent[i]] if parent[i] >= 0 else [])])
        assert depths(parent).tolist() == [len(walk) - 1 for walk in walks], seed
        expected = [bool(marked[walk].any()) for walk in walks]
        assert ancestors_or_self(parent, marked).tolist() == expected, seed


def left_out(path: Path, skip: int) -> list[str]:
    """`name@start` of the ranges left out, in order of thread and start."""
    found = attributed(path)
    paths = range_paths(found)
    merged = merged_paths(paths)
    out = warm_up(found, merged.of[paths.of], skip)
    ranges, names = found.trace.ranges, found.trace.range_names
    return [
        f"{names[name].text}@{start}"
        for name, start, gone in zip(ranges.name.tolist(), ranges.start.tolist(), out.tolist(), strict=True)
        if gone
    ]


def iterations(count: int, start: int = 0, **where: Any) -> list[Range]:
    return [Range(f"iter{i}", start + 10 * i, start + 10 * i + 5, **where) for i in range(count)]


def test_the_first_of_what_repeats_are_warm_up(trace: MakeTrace) -> None:
    """Of five iterations the first two go."""
    assert left_out(trace(*iterations(5), duration=999), 2) == ["iter0@0", "iter1@10"]


def test_what_lies_inside_goes_too(trace: MakeTrace) -> None:
    """The ranges inside a warm-up iteration go with it, and none of those inside a kept one."""
    inner = [Range("mm", 10 * i + j, 10 * i + j + 1) for i in range(3) for j in (1, 3)]
    assert left_out(trace(*iterations(3), *inner, duration=999), 1) == ["iter0@0", "mm@1", "mm@3"]


def test_what_does_not_repeat_more_often_stays(trace: MakeTrace) -> None:
    """Two instances are no repetition when two are to be skipped: not everything is warm-up."""
    assert left_out(trace(*iterations(2), Range("load", 50, 60), duration=999), 2) == []


def test_each_parent_has_warm_up_of_its_own(trace: MakeTrace) -> None:
    """Where the iterations of two runs start anew, the first of each run goes."""
    path = trace(Range("math", 0, 40), *iterations(3), Range("flash", 100, 140), *iterations(3, 100), duration=999)
    assert left_out(path, 1) == ["iter0@0", "iter0@100"]


def test_each_thread_has_warm_up_of_its_own(trace: MakeTrace) -> None:
    """Iterations of two threads, or of two processes, are two repetitions."""
    path = trace(*iterations(3, thread=1), *iterations(3, thread=2), *iterations(3, process=2), duration=999)
    assert left_out(path, 1) == ["iter0@0"] * 3


def test_only_the_outermost_repetition_counts(trace: MakeTrace) -> None:
    """Micro-batches inside a kept step are kept, though they repeat."""
    micro = [Range("micro", 100 * i + 10 * j, 100 * i + 10 * j + 5) for i in range(3) for j in range(4)]
    steps = [Range(f"step{i}", 100 * i, 100 * i + 50) for i in range(3)]
    out = left_out(trace(*steps, *micro, duration=999), 1)
    assert out == ["step0@0", "micro@0", "micro@10", "micro@20", "micro@30"]


def test_start_end_ranges_have_warm_up_too(trace: MakeTrace) -> None:
    """Of windows that repeat the first go."""
    windows = [Range("w", 10 * i, 10 * i + 5, kind="start_end") for i in range(3)]
    assert left_out(trace(*windows, duration=999), 1) == ["w@0"]


def test_nothing_is_skipped_unless_asked(trace: MakeTrace) -> None:
    """Skip 0 leaves out nothing, and a report without ranges has nothing to leave out."""
    assert left_out(trace(*iterations(3), duration=999), 0) == []
    assert left_out(trace(duration=999), 3) == []


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a", ["a"]),
        ("a/iter0", ["a", "iter0"]),
        (r"a\/b/c", [r"a\/b", "c"]),
        (r"a\\/c", [r"a\\", "c"]),
        (r"a\b/c", [r"a\b", "c"]),
        ("", [""]),
    ],
)
def test_paths_come_apart_as_they_were_joined(path: str, parts: list[str]) -> None:
    """A slash in a name is written with a backslash, and a backslash at its end twice."""
    assert split_path(path) == parts


@pytest.mark.parametrize(
    ("name", "merged"),
    [
        ("iter7", "iter*"),
        ("step 12", "step*"),
        ("Iteration 12", "Iteration*"),
        ("train_step_3", "train_step*"),
        ("ProfilerStep#12", "ProfilerStep*"),
        ("batch 4", "batch 4"),
        ("batch_size_32", "batch_size_32"),
        ("layer3", "layer3"),
        ("RUN::batch16", "RUN::batch16"),
        ("generation_37", "generation_37"),
    ],
)
def test_numbered_names_of_steps_merge(name: str, merged: str) -> None:
    """Names of steps lose their number, whatever stands before `step` or `iter`; sizes and layers keep theirs."""
    assert merged_names([name]) == [merged]
    assert names_step(merged) or not merged.endswith("*")
    assert merged_names([name], ("iter*",)) == ["iter*" if name == "iter7" else name]


def test_words_that_may_be_sizes_merge_where_they_count() -> None:
    """`batch 3, 4, 5` are steps; `batch 16, 32, 64` and two epochs are not."""
    steps = ["batch 3", "batch 4", "batch 5", "micro-batch:0", "micro-batch:2", "micro-batch:1"]
    assert merged_names(steps) == ["batch*"] * 3 + ["micro-batch*"] * 3
    sizes = ["batch 16", "batch 32", "batch 64", "epoch 0", "epoch 1"]
    assert merged_names(sizes) == sizes
    assert merged_names(["batch " + "1" * 5_000]) == ["batch " + "1" * 5_000]
