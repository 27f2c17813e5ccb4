"""The wheel holds `nsysprof` and nothing else, also when it is built from the source archive."""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "MANIFEST.in", "docs"),
    *("nsysprof", "workloads", "tests", "analysis"),
]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("build") is None, reason="needs the dev extra: build")


def build(source: Path, out: Path, *what: str) -> Path:
    """Build without a network (the dev extra holds setuptools) and return the one file that came out."""
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A wheel built from the sources, a source archive, and the wheel built from that archive."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    wheel = build(source, folder / "wheel", "--wheel")
    shutil.rmtree(source / "build", ignore_errors=True)
    sdist = build(source, folder / "sdist", "--sdist")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # Debian 12's Python 3.11.2 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    return wheel, sdist, build(unpacked, folder / "again", "--wheel")


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_has_one_top_level_package(archives: tuple[Path, Path, Path]) -> None:
    """Nothing but `nsysprof` lands in site-packages."""
    top = {name.split("/")[0] for name in names(archives[0])}
    assert {name for name in top if not name.endswith(".dist-info")} == {"nsysprof"}


def test_wheel_has_every_module_and_its_data(archives: tuple[Path, Path, Path]) -> None:
    """Every source file of the package and of workloads is in the wheel, with kernels, rules and page parts."""
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "nsysprof").rglob("*.py")}
    sources |= {
        f"nsysprof/{path.relative_to(ROOT).as_posix()}"
        for pattern in ("*.py", "kernels/*.cu")
        for path in (ROOT / "workloads").rglob(pattern)
    }
    sources |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "nsysprof" / "page" / "parts").iterdir()}
    wanted = sources | {"nsysprof/kernels/kernels.toml", "nsysprof/py.typed", "nsysprof/workloads/__init__.py"}
    inside = {name for name in names(archives[0]) if name.startswith("nsysprof/")}
    assert inside == wanted


def test_wheel_names_the_command_and_the_licence(archives: tuple[Path, Path, Path]) -> None:
    """Installing makes the command `nsysprof`, and the licence travels along."""
    with zipfile.ZipFile(archives[0]) as wheel:
        (entry,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert "nsysprof = nsysprof.__main__:main" in wheel.read(entry).decode()
        (metadata,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
        requires = [line for line in wheel.read(metadata).decode().splitlines() if line.startswith("Requires-Dist")]
    assert any(name.endswith("licenses/LICENSE") for name in names(archives[0]))
    assert not [line for line in requires if "torch" in line and "extra ==" not in line]


def test_source_archive_has_the_manual(archives: tuple[Path, Path, Path]) -> None:
    """README, manual and CONTRIBUTING travel with the sources: the tests of the archive read them."""
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    with tarfile.open(archives[1]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert wanted | {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= inside


def test_source_archive_gives_the_same_wheel(archives: tuple[Path, Path, Path]) -> None:
    """A wheel built from the source archive holds the same files with the same bytes."""
    first, _, again = archives
    assert names(first) == names(again)
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(again) as two:
        differing = [name for name in names(first) if one.read(name) != two.read(name)]
    assert [name for name in differing if not name.endswith("dist-info/RECORD")] == []
