"""Made-up sweeps that several tests of a benchmark look at."""

import pytest

from nsysprof.bench.results import BenchResults
from tests.kit.bench_samples import made_up, results_of

ALL = ("math", "flash", "efficient", "cudnn", "auto")


@pytest.fixture(scope="package")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    """Five backends over S, as on an H200; cudnn passes flash between 1024 and 2048."""
    data = made_up(ALL, (256, 512, 1024, 2048, 4096), samples=50)
    return results_of(tmp_path_factory.mktemp("sweep"), data)


@pytest.fixture(scope="package")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    """naive in two dtypes and flash in one, until memory runs out."""
    data = made_up(
        dtypes={"fp32": ("naive", "auto"), "fp16": ("naive", "auto", "flash")},
        seqs=(4096, 8192, 16384, 32768), batch=8, workload="transformer_block", samples=20,
    )  # fmt: skip
    data["environment"]["workload"]["memory_bytes"] = 150_000_000_000
    return results_of(tmp_path_factory.mktemp("mixed"), data)
