"""The stages of the tiled kernels without a GPU: their sources, how they are cut up, and what a device must have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _tiled_stages import Device

WORKLOADS = Path(__file__).parents[2] / "workloads"
KERNELS = WORKLOADS / "kernels"
NAMES = [f"tiled_o{number}" for number in range(7)]


@pytest.fixture
def h200() -> Device:
    """The limits of an H200."""
    from _tiled_stages import Device

    return Device("NVIDIA H200", (9, 0), 132, 232448, 1024)


@pytest.fixture
def t4(h200: Device) -> Device:
    """The limits of a T4: before cp.async, 64 KiB of shared memory."""
    return replace(h200, name="Tesla T4", capability=(7, 5), multiprocessors=40, shared_bytes=65536)


def head_dims(name: str) -> tuple[int, ...]:
    """Head dimensions that a stage must be able to do."""
    from _tiled_stages import STAGES

    return STAGES[name].head_dims or (1, 17, 32, 64, 80, 96, 128)


def test_every_stage_has_its_kernel_and_nothing_else_is_there() -> None:
    """One source a stage, named like its symbol and its backend, and one for the gradients of those that have some."""
    from _attention import BACKENDS
    from _tiled_stages import STAGES

    assert list(STAGES) == NAMES
    backward = {f"{name}_backward" for name in NAMES if STAGES[name].backward}
    assert {path.stem for path in KERNELS.glob("*.cu")} == {*NAMES, *backward}
    assert [name for name in BACKENDS if name.startswith("tiled")] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_takes_the_arguments_and_macros_that_it_is_given(name: str) -> None:
    """Its symbol, the common arguments in order, and the macros that say how it is cut up."""
    from _tiled_stages import STAGES

    source = (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    found = re.search(rf'extern "C" __global__ void[^;{{]*?\b{name}\((.*?)\)\s*\{{', source, re.DOTALL)
    assert found, f"{name}.cu has no kernel of that name"
    if not STAGES[name].arguments:
        arguments = [each.split()[-1].lstrip("*") for each in found[1].split(",")]
        common = ["q", "k", "v", "out", "queries", "keys", "scale_log2e", "causal", "diagonal", "heads"]
        assert arguments == common[: len(arguments)]
        assert len(arguments) >= 9
    own = [macro for macro, _ in STAGES[name].tiles("fp16", 64)[0].more]
    assert [macro for macro in ("HEAD_DIM", "ROWS", "COLUMNS", *own) if macro not in source] == []


@pytest.mark.parametrize("name", [*NAMES, "tiled_o6_backward"])
def test_a_kernel_says_what_it_changes_predicts_and_reached(name: str) -> None:
    """In the comment at the top, with the GPU and the command it was measured with."""
    lines = (KERNELS / f"{name}.cu").read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("//"))
    top = " ".join(line.removeprefix("//").strip() for line in lines[:end])
    assert top.startswith(f"{name}: ")
    assert re.search(r"Predicts: .*\d.* Measured on an NVIDIA H200 \(`.+`.*\): .*\d", top)


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.cu")), ids=lambda path: path.stem)
def test_nvrtc_takes_no_generic_lambda(path: Path) -> None:
    """To it their code is a host function's, where nvcc takes it for the device's."""
    assert not re.search(r"\[[&=]\]\([^)]*\bauto\b", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_tiles_fit_an_h200(name: str, h200: Device) -> None:
    """Whatever type and head dimension: whole warps, and as many blocks as are meant to fit on a multiprocessor."""
    from _tiled_stages import STAGES, fitting_tile, macros, require

    for dtype in STAGES[name].dtypes:
        for head_dim in head_dims(name):
            require(name, dtype, head_dim, h200)
            tile = fitting_tile(name, dtype, head_dim, h200)
            assert tile.blocks * (tile.shared_bytes + 1024) <= 228 * 1024
            assert tile.blocks * tile.threads <= 2048
            assert tile.threads == 32 * tile.warps
            assert macros(dtype, head_dim, tile) == {
                **{"HALF": int(dtype == "fp16"), "HEAD_DIM": head_dim, "ROWS": tile.rows},
                **{"COLUMNS": tile.columns, "WARPS": tile.warps, "BLOCKS": tile.blocks},
                **dict(tile.more),
            }


def test_shared_memory_is_counted_to_the_byte() -> None:
    """What the kernels lay out one after the other, in the arithmetic of their comments."""
    from _tiled_stages import STAGES

    def taken(name: str, dtype: str, head_dim: int) -> int:
        return STAGES[name].tiles(dtype, head_dim)[0].shared_bytes

    assert taken("tiled_o0", "fp16", 40) == 4 * (8 * 40 + 32 * 41 + 32 * 40 + 8 * 32)
    assert taken("tiled_o1", "fp32", 64) == 4 * (16 * 64 + 64 * 65 + 64 * 64 + 16 * 64)
    assert taken("tiled_o2", "fp16", 64) == 2 * 64 * 128
    assert taken("tiled_o2", "fp32", 128) == 2 * 64 * 512


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_tiles_of_gradients_fit_an_h200(head_dim: int, h200: Device) -> None:
    """Shared memory as the kernels lay it out; and its macros are those that the source asks for."""
    from _tiled_stages import backward_tile, macros

    source = (KERNELS / "tiled_o6_backward.cu").read_text(encoding="utf-8")
    tile = backward_tile(head_dim)
    assert tile.shared_bytes <= h200.shared_bytes
    assert tile.threads == 2 * tile.rows + 128
    assert [macro for macro in macros("fp16", head_dim, tile) if macro not in source] == ["BLOCKS"]


def test_old_gpus_run_what_needs_nothing_new(t4: Device) -> None:
    """The first stages fit 64 KiB, with narrower tiles where they must; the others are refused by name."""
    from _tiled_stages import TiledError, fitting_tile, require

    for name in ("tiled_o0", "tiled_o1", "tiled_o2"):
        for dtype in ("fp16", "fp32"):
            for head_dim in (64, 128):
                require(name, dtype, head_dim, t4)
                assert fitting_tile(name, dtype, head_dim, t4).shared_bytes <= 65536
    for name in ("tiled_o3", "tiled_o4"):
        with pytest.raises(TiledError, match=r"needs a GPU of compute capability 8.0 or newer, Tesla T4 has 7.5"):
            require(name, "fp16", 64, t4)


def test_hopper_only_is_hopper_only(h200: Device) -> None:
    """The last stage is compiled for `sm_90a` and refused before and after it."""
    from _tiled_stages import TiledError, compile_options, require

    assert compile_options("tiled_o5", {}, h200)[0] == "-arch=sm_90a"
    assert compile_options("tiled_o3", {}, h200)[0] == "-arch=sm_90"
    for name, capability in (("NVIDIA A100", (8, 0)), ("NVIDIA B200", (10, 0))):
        with pytest.raises(TiledError, match=rf"capability 9.0, {name} has {capability[0]}\.0"):
            require("tiled_o5", "fp16", 64, replace(h200, name=name, capability=capability))


@pytest.mark.parametrize(
    ("name", "dtype", "head_dim", "reason"),
    [
        ("tiled_o0", "bf16", 64, "tiled_o0 computes fp16 and fp32, not bf16"),
        ("tiled_o4", "fp32", 64, "tiled_o4 computes fp16, not fp32"),
        ("tiled_o0", "fp16", 129, "tiled_o0 is for head dimensions up to 128, not 129"),
        ("tiled_o2", "fp16", 96, "tiled_o2 is for head dimensions 64 and 128, not 96"),
    ],
)
def test_what_a_stage_cannot_do_is_said(name: str, dtype: str, head_dim: int, reason: str, h200: Device) -> None:
    """In a line that names the stage, what it can do and what was asked for."""
    from _tiled_stages import TiledError, require

    with pytest.raises(TiledError) as refused:
        require(name, dtype, head_dim, h200)
    assert str(refused.value) == reason


def test_a_device_too_small_is_told_by_how_much(h200: Device) -> None:
    """Shared memory and threads, with what is needed and what is there; the best tile that fits is taken."""
    from _tiled_stages import STAGES, TiledError, fitting_tile

    first, second, last = STAGES["tiled_o3"].tiles("fp32", 64)
    assert fitting_tile("tiled_o3", "fp32", 64, replace(h200, shared_bytes=first.shared_bytes)) == first
    assert fitting_tile("tiled_o3", "fp32", 64, replace(h200, shared_bytes=first.shared_bytes - 1)) == second
    with pytest.raises(TiledError) as refused:
        fitting_tile("tiled_o3", "fp32", 64, replace(h200, name="a small GPU", shared_bytes=1024))
    assert str(refused.value) == (
        f"for fp32 and head dimension 64, tiled_o3 needs {last.shared_bytes:,} bytes of shared memory per block;"
        " a small GPU has 1,024"
    )
    with pytest.raises(TiledError, match="512 threads per block; a small GPU has 256"):
        fitting_tile("tiled_o1", "fp16", 64, replace(h200, name="a small GPU", threads=256))


def test_few_blocks_are_halved(h200: Device) -> None:
    """Whole ones from one and a half for each multiprocessor on; those that stay are never more than these."""
    from _tiled_stages import fitting_tile, launch_grid

    tile = fitting_tile("tiled_o4", "fp16", 64, h200)
    assert launch_grid("tiled_o4", tile, 8, 4096, h200) == (256, 1, 1)
    assert launch_grid("tiled_o4", tile, 8, 2048, h200) == (256, 1, 1)
    assert launch_grid("tiled_o4", tile, 199, 128, h200) == (199, 1, 1)
    assert launch_grid("tiled_o4", tile, 198, 128, h200) == (396, 1, 1)
    assert launch_grid("tiled_o5", tile, 8, 4096, h200) == (132, 1, 1)
    assert launch_grid("tiled_o5", tile, 8, 300, h200) == (48, 1, 1)


def test_emptier_gpus_get_smaller_tiles(h200: Device) -> None:
    """Half or a quarter of the rows, where the heaviest tile would be more than a multiprocessor's share, or without a
    mask half of them had none; wide heads, and other stages, have one height.
    """
    from _tiled_stages import Load, fitting_tile, launch_grid

    for load, rows, blocks in (
        (Load(4096, 64, True), 256, 132),
        (Load(4096, 8, True), 128, 132),
        (Load(1024, 8, True), 64, 128),
        (Load(300, 8, False), 64, 40),
        (Load(1024, 17, False), 256, 68),
    ):
        tile = fitting_tile("tiled_o6", "bf16", 64, h200, load=load)
        assert (tile.rows, launch_grid("tiled_o6", tile, load.heads, load.queries, h200)[0]) == (rows, blocks)
        assert fitting_tile("tiled_o6", "bf16", 128, h200, load=load).rows == 128
        assert fitting_tile("tiled_o3", "fp16", 64, h200, load=load).rows == 64


def test_grids_cover_every_row(h200: Device) -> None:
    """Blocks of the last rows are not full; the first stage has one for all heads; too many are refused."""
    from _tiled_stages import TiledError, fitting_tile, launch_grid

    tile = fitting_tile("tiled_o0", "fp16", 64, h200)
    assert launch_grid("tiled_o0", tile, 8, 1, h200) == (1, 1, 1)
    assert launch_grid("tiled_o0", tile, 8, 17, h200) == (3, 1, 1)
    tile = fitting_tile("tiled_o3", "fp16", 64, h200)
    assert launch_grid("tiled_o3", tile, 8, 4096, h200) == (8, 64, 1)
    assert launch_grid("tiled_o3", tile, 24, 65, h200) == (24, 2, 1)
    with pytest.raises(TiledError, match=r"tiled_o3 needs 65,536 blocks along y, CUDA allows 65,535"):
        launch_grid("tiled_o3", tile, 1, 65536 * 64, h200)


def test_options_are_the_macros_and_little_else(h200: Device) -> None:
    """No fast math beyond flushing what is below 1e-38 to zero."""
    from _tiled_stages import compile_options

    options = compile_options("tiled_o0", {"HALF": 1, "HEAD_DIM": 64}, h200)
    assert options == ("-arch=sm_90", "-std=c++17", "-ftz=true", "-lineinfo", "-DHALF=1", "-DHEAD_DIM=64")


def test_the_keys_of_a_tile_can_be_chosen(h200: Device) -> None:
    """Among those that a stage has, the best one first where none is asked for; others are named."""
    from _tiled_stages import TiledError, fitting_tile

    assert [fitting_tile("tiled_o1", "fp16", 64, h200, columns).columns for columns in (0, 64, 32)] == [64, 64, 32]
    with pytest.raises(TiledError, match="tiled_o5 has tiles of 64 keys for fp16 and head dimension 64, not 128"):
        fitting_tile("tiled_o5", "fp16", 64, h200, 128)
