"""The fingerprint of a machine, and the place of a process in its job."""

import json
from pathlib import Path

import pytest

from nsysprof.tools.driver import Driver, environment_hash, fingerprint, rank_in_job
from nsysprof.tools.nsys import Nsys

NSYS = Nsys(Path("/n/nsys"), (2025, 3, 2), "2025.3.2.474-v0")


def test_the_hash_is_of_what_is_stable() -> None:
    """The same machine hashes alike whatever the order of keys; another driver or a precision flag does not."""
    driver = Driver("580.1", (13, 0), ({"name": "NVIDIA H200"},))
    flags = {"torch": "2.11.0", "precision": {"allow_tf32_matmul": False}}
    first = fingerprint(NSYS, driver, flags)
    assert first["driver_cuda"] == "13.0"
    assert environment_hash(first) == environment_hash(dict(reversed(list(first.items()))))
    other = fingerprint(NSYS, driver, {**flags, "precision": {"allow_tf32_matmul": True}})
    newer = fingerprint(NSYS, Driver("581.0", (13, 0), driver.gpus), flags)
    assert len({environment_hash(one) for one in (first, other, newer, fingerprint(NSYS, None, None))}) == 4
    json.dumps(first)


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, {"rank": 3, "local_rank": 1, "world_size": 4}),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "7"}, {"rank": 0}),
        ({"RANK": "first", "SLURM_PROCID": "2", "SLURM_NTASKS": "8"}, {"rank": 2, "world_size": 8}),
    ],
)
def test_rank_in_job(variables: dict[str, str], job: dict[str, int] | None) -> None:
    """What launchers tell a process of its place in a job is known by the names that they use."""
    assert rank_in_job(variables) == job
