"""On AMD Zen 4, numpy sorts with AVX2 if it can, and programs that are started do not notice."""

import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys
from pathlib import Path
from nsysprof.commands import report_options
report_options.PROCESSOR = Path(sys.argv[1])
report_options.AVX_512 = " ".join(sys.argv[2:]) or report_options.AVX_512
report_options.ReadingOptions()
from numpy._core._multiarray_umath import __cpu_dispatch__ as used, __cpu_features__ as known
print([name for name in used if name in ("X86_V4", "AVX512_SKX", "AVX512_ICL") and known[name]])
print("NPY_DISABLE_CPU_FEATURES" in os.environ)
"""


def test_numpy_does_not_sort_with_avx_512(tmp_path: Path) -> None:
    """A processor of this family with AVX-512 is Zen 4."""
    processor = tmp_path / "cpuinfo"
    processor.write_text("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f sha\n", "utf-8")
    run = subprocess.run([sys.executable, "-c", CODE, processor], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["[]", "False"], run.stderr
    # what this numpy cannot do without: the command begins again, and leaves it
    command = [sys.executable, "-c", CODE, str(processor), "X86_V2", "SSE2"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split()[-1] == "True", run.stderr
