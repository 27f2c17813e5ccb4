"""The gradients of `tiled_o6` without a GPU: which tiles go where, by the kernels' own code, and what autograd gets."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.workloads.test_tiled_dealer import COMPILER, part

if TYPE_CHECKING:
    import torch

SOURCE = Path(__file__).parents[2] / "workloads" / "kernels" / "tiled_o6_backward.cu"
BEFORE = """
#include <algorithm>
#include <cstdio>
#define __device__
#define __forceinline__ inline
using std::max; using std::min;
typedef unsigned u32;
constexpr int TILE = 64, ROWS = 128, HEADS = 8;
"""
# A line for each warpgroup of each task: whether it holds keys, head, first row, and the tiles of the task and its own.
AFTER = """
template <bool KEYS> void deal(const Problem& problem)
{
    for (u32 index = 0;; index++) {
        const Task task = task_of<KEYS>(problem, index);
        if (task.head < 0) break;
        for (int row = task.row; row < task.row + ROWS; row += TILE) {
            int begin, end;
            tiles_passing<KEYS>(begin, end, problem, row, TILE);
            printf("%d %d %d %d %d %d %d\\n", KEYS, task.head, row, task.begin, task.end, begin, end);
        }
    }
}

int main()
{
    Problem problem = {};
    int* given[] = {&problem.queries, &problem.keys, &problem.heads, &problem.causal, &problem.diagonal};
    while (scanf("%d %d %d %d %d", given[0], given[1], given[2], given[3], given[4]) == 5) {
        deal<false>(problem);
        deal<true>(problem);
        puts("end");
    }
}
"""
SIZES = (1, 64, 65, 200, 300)
PROBLEMS = [
    (queries, keys, heads, causal, diagonal)
    for queries, keys in product(SIZES, SIZES)
    for heads in (1, 8, 11)
    for causal, diagonal in ((0, 0), (1, 0), (1, 5), (1, -70), (1, keys - queries), (1, keys), (1, -queries))
    if -queries <= diagonal <= keys
]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The lines of each problem."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    text = SOURCE.read_text(encoding="utf-8")
    parts = (
        part(text, "struct Problem", "constexpr int WARPGROUP"),
        part(text, "// 64 rows for", "__device__ __forceinline__ void write"),
    )
    folder = tmp_path_factory.mktemp("backward")
    (folder / "tasks.cpp").write_text("".join((BEFORE, *parts, AFTER)), encoding="utf-8")
    subprocess.run([COMPILER, "-O1", "-o", folder / "tasks", folder / "tasks.cpp"], check=True)
    given = "\n".join(" ".join(map(str, each)) for each in PROBLEMS)
    done = subprocess.run([folder / "tasks"], input=given, capture_output=True, text=True, check=True)
    blocks = done.stdout.split("end\n")[:-1]
    return [np.array([line.split() for line in block.splitlines()], int) for block in blocks]


def test_each_row_is_held_once_and_sees_what_it_should(dealt: list[np.ndarray]) -> None:
    """By one warpgroup; to which those tiles pass that have something to see, from among those of its task."""
    assert len(dealt) == len(PROBLEMS)
    for (queries, keys, heads, causal, diagonal), lines in zip(PROBLEMS, dealt, strict=True):
        seen = np.arange(keys) <= np.arange(queries)[:, None] + (diagonal if causal else keys)
        tiles = np.add.reduceat(np.add.reduceat(seen, range(0, queries, 64)), range(0, keys, 64), axis=1) > 0
        for of_keys in (0, 1):
            mine = lines[lines[:, 0] == of_keys]
            passing = tiles.T if of_keys else tiles
            rows = range(0, -(-(keys if of_keys else queries) // 128) * 128, 64)
            assert sorted(map(tuple, mine[:, 1:3])) == sorted(product(range(heads), rows))
            for _, _, row, task_begin, task_end, begin, end in mine:
                want = passing[row // 64].nonzero()[0] if row // 64 < len(passing) else np.array([], int)
                assert set(want) <= set(range(begin, end))
                assert end - begin <= len(want) + 1  # the last tile may end before the first that sees it
                assert not len(want) or (task_begin <= begin and end <= task_end)


def test_autograd_gets_each_gradient_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the inputs as they were, contiguous, also where they and the gradient of the output are views; none to be
    differentiated again, which with `once_differentiable` would be zero, without a word.
    """
    import torch

    import _tiled_backward
    from _tiled_stages import TiledError

    def attend(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert all(each.is_contiguous() for each in inputs)
        return inputs[0] + inputs[1] * inputs[2], inputs[0].sum(dim=-1)

    def launch(tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], *mask: object) -> None:
        q, k, v, out, log_sum_exp, grad_out = tensors
        assert mask == (True, -3)
        assert torch.equal(out, q + k * v)
        assert torch.equal(log_sum_exp, q.sum(dim=-1))
        assert grad_out.is_contiguous()
        for gradient, factor in zip(gradients, (1, v, k), strict=True):
            gradient.copy_(grad_out * factor)

    monkeypatch.setattr(_tiled_backward, "launch", launch)
    leaves = [each.requires_grad_() for each in torch.randn(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)]
    out = _tiled_backward.Attention.apply(attend, True, -3, *leaves)
    grad_out = torch.randn(2, 5, 4, 8).transpose(1, 2)
    found = torch.autograd.grad(out, leaves, grad_out)
    wanted = torch.autograd.grad(leaves[0] + leaves[1] * leaves[2], leaves, grad_out)
    assert all(map(torch.equal, found, wanted))
    out = _tiled_backward.Attention.apply(attend, True, -3, *leaves)
    with pytest.raises(TiledError, match="tiled_o6 has no second derivatives: leave out create_graph"):
        torch.autograd.grad(out, leaves, grad_out, create_graph=True)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
def test_without_rows_gradients_are_zero(queries: int, keys: int) -> None:
    """Those of queries that see no key, and those of keys that no query sees; nothing is compiled."""
    import torch

    from _tiled_backward import launch

    q, k, v = (torch.zeros(1, 2, length, 64).half() for length in (queries, keys, keys))
    gradients = [torch.full_like(each, torch.nan) for each in (q, k, v)]
    launch((q, k, v, q, q[..., 0].float(), q), gradients, False, 0)
    assert not any(each.any() for each in gradients)


def test_kernels_get_the_arguments_that_they_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as each has, in its order, on the GPU of the tensors, with a block for each 64 or 128 rows of a head."""
    import torch

    import _tiled
    import _tiled_backward
    from _tiled_stages import Device
    from _tiled_tma import TensorMap

    source = SOURCE.read_text(encoding="utf-8")
    numbers = {"queries": 70, "keys": 200, "heads": 6, "causal": 1, "diagonal": 200}
    launched: dict[str, dict[str, Any]] = {}

    def start(name: str, grid: object, threads: int, _shared: int, places: list[int], index: int) -> None:
        signature = re.search(rf"tiled_o6_backward_{name}\(([^)]*)\)", source)
        assert signature is not None
        names = re.findall(r"(\w+)(?:,|$)", signature[1])
        assert (len(places), index) == (len(names), -1)
        found: dict[str, Any] = {"grid": grid, "threads": threads}
        for each, place in zip(names, places, strict=True):
            if each == "problem":
                problem = _tiled_backward._Problem.from_address(place)
                found |= {field: getattr(problem, field) for field in numbers}
            elif "_and_" in each:
                found[each] = [ctypes.c_uint64.from_address(place + at).value for at in (0, 128)]
            else:
                kind = ctypes.c_int if each in ("queries", "heads") else ctypes.c_uint64
                found[each] = kind.from_address(place).value
        launched[name] = found

    monkeypatch.setattr(_tiled, "start", start)
    monkeypatch.setattr(_tiled, "device_limits", lambda _: Device("H200", (9, 0), 132, 232448, 1024))
    monkeypatch.setattr(_tiled_backward, "_functions", lambda *_: ["rows", "keys", "queries"])
    monkeypatch.setattr(_tiled_backward, "tensor_map", lambda address, *_: TensorMap(address))
    q, k, v = (torch.zeros(2, 3, length, 64).half() for length in (70, 200, 200))
    out, grad_out, sums, dq = (torch.zeros_like(q), torch.zeros_like(q), torch.zeros(2, 3, 70), torch.zeros_like(q))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    _tiled_backward.launch((q, k, v, out, sums, grad_out), (dq, dk, dv), True, 2**40)
    at = {
        "rows": launched["rows"]["rows"],
        "counters": launched["rows"]["rows"] + 4 * 2 * 6 * 128,
        **{"queries_and_gradients": [q.data_ptr(), grad_out.data_ptr()]},
        **{"keys_and_values": [k.data_ptr(), v.data_ptr()]},
    }
    assert launched == {
        "rows": {
            **{"grid": (24, 1, 1), "threads": 256, "queries": 70, "heads": 6},
            **{"rows": at["rows"], "counters": at["counters"], "log_sum_exp": sums.data_ptr()},
            **{"out": out.data_ptr(), "grad_out": grad_out.data_ptr()},
        },
        "keys": {
            **{"grid": (12, 1, 1), "threads": 384, **at, **numbers},
            **{"grad_keys": dk.data_ptr(), "grad_values": dv.data_ptr()},
        },
        "queries": {"grid": (6, 1, 1), "threads": 384, **at, **numbers, "grad_queries": dq.data_ptr()},
    }
