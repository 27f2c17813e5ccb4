"""The first hour of a new user: the README's blocks run in a fresh copy, and its recipes name what exists."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)


@pytest.mark.skipif(importlib.util.find_spec("build") is None, reason="needs the dev extra: setuptools")
def test_the_first_two_blocks_run_in_a_fresh_copy_without_gpu_and_torch(tmp_path: Path) -> None:
    """They run verbatim and in order; only the downloads of `pip install` come from this environment."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("nsysprof", "workloads", "traces"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.nsys-rep"))
    without = tmp_path / "without"
    without.mkdir()
    (without / "torch.py").write_text("raise ImportError('no torch here')\n")
    offline = {
        "PYTHONPATH": os.pathsep.join((str(without), sysconfig.get_paths()["purelib"])),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the option without its "no"
        "PIP_IGNORE_INSTALLED": "1",  # an editable install of this environment is no install of the copy
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin")),
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment = {**os.environ, **offline}
    environment.pop("VIRTUAL_ENV", None)
    for block in BLOCKS[:2]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert (tmp_path / "run.analysis" / "ranges.csv").is_file()
    assert "as a CUDA graph" in done.stdout
