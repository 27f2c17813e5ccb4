"""Theoretical occupancy, against CUDA's calculator and what ncu showed."""

from __future__ import annotations

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


def test_waves_and_what_is_not_known() -> None:
    """140 blocks on 132 SMs of one each are 1.06 waves; without registers, or of an unknown GPU, nothing is said."""
    one = np.array([512, 512])
    found = occupancy((9, 0), one, np.array([32, -1]), np.array([120 << 10, 0]))
    assert found is not None
    waves = found.waves(np.array([140, 140]), 132)
    assert waves[0] == pytest.approx(140 / 132)
    assert np.isnan(waves[1])
    assert found.occupancy.tolist() == [0.25, 0.0]
    assert occupancy((3, 5), one, one, one) is None
    assert occupancy(None, one, one, one) is None
