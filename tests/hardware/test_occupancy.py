"""Theoretical occupancy, against CUDA's calculator and what ncu showed."""

import numpy as np
import pytest

from nsysprof.hardware.occupancy import LIMITERS, occupancy

# Capability, threads, registers, bytes of shared memory; blocks per SM and what limits them by CUDA's occupancy
# calculator.
KNOWN = [
    ((9, 0), 128, 18, 0, 16, "warps"),
    ((9, 0), 384, 168, 213_188, 1, "shared memory"),
    ((9, 0), 256, 32, 0, 8, "registers"),
    ((9, 0), 256, 255, 0, 1, "registers"),
    ((9, 0), 32, 16, 0, 32, "blocks"),
    ((9, 0), 128, 32, 100 << 10, 2, "shared memory"),
    ((8, 0), 1024, 64, 0, 1, "registers"),
    ((8, 6), 256, 40, 0, 6, "registers"),
    ((7, 5), 256, 32, 16 << 10, 4, "shared memory"),
]


@pytest.mark.parametrize(("capability", "threads", "registers", "shared", "blocks", "limiter"), KNOWN)
def test_how_many_blocks_an_sm_holds(
    capability: tuple[int, int], threads: int, registers: int, shared: int, blocks: int, limiter: str
) -> None:
    """By the scarcest of blocks, warps, registers and shared memory."""
    found = occupancy(capability, *(np.array([each]) for each in (threads, registers, shared)))
    assert found is not None
    assert (int(found.blocks[0]), LIMITERS[int(found.limiter[0])]) == (blocks, limiter)


# Threads, registers, bytes of shared memory, blocks of a grid; theoretical occupancy in % and waves per SM as ncu
# 2025.3 printed them on an H200 on 2026-11-23. All 96 launches that were read agree; these are one of each kind.
MEASURED = [
    (384, 40, 33_792, 4, 75, 0.01),
    (128, 32, 0, 11_487, 100, 5.44),
    (384, 168, 204_964, 132, 18.75, 1.0),
    (256, 36, 2_112, 50_176, 75, 63.35),
    (512, 23, 0, 16_384, 100, 31.03),
    (128, 48, 0, 32_768, 62.5, 24.82),
    (512, 32, 2_064, 528, 100, 1.0),
    (128, 255, 31_488, 1_024, 12.5, 3.88),
    (256, 236, 49_152, 1_024, 12.5, 7.76),
    (128, 33, 0, 32_760, 75, 20.68),
    (128, 16, 102_400, 131_072, 12.5, 496.48),
    (512, 16, 122_880, 140, 25, 1.06),
]


@pytest.mark.parametrize(("threads", "registers", "shared", "grid", "percent", "waves"), MEASURED)
def test_what_ncu_printed(threads: int, registers: int, shared: int, grid: int, percent: float, waves: float) -> None:
    """Theoretical occupancy and waves per SM of an H200 with 132 SMs."""
    found = occupancy((9, 0), *(np.array([each]) for each in (threads, registers, shared)))
    assert found is not None
    assert 100 * found.occupancy[0] == pytest.approx(percent)
    assert found.waves(np.array([grid]), 132)[0] == pytest.approx(waves, abs=0.005)


def test_waves_and_what_is_not_known() -> None:
    """140 blocks on 132 SMs of one each are 1.06 waves; without registers, or of an unknown GPU, nothing is said."""
    one = np.array([512, 512, 512])
    found = occupancy((9, 0), one, np.array([32, -1, (1 << 63) - 1]), np.array([120 << 10, 0, 0]))
    assert found is not None
    waves = found.waves(np.array([140, 140, 140]), 132)
    assert waves[0] == pytest.approx(140 / 132)
    assert np.isnan(waves[1:]).all()
    assert found.occupancy.tolist() == [0.25, 0.0, 0.0]
    assert occupancy((3, 5), one, one, one) is None
    assert occupancy(None, one, one, one) is None
