"""Whether the driver lets this user read hardware counters, and what to do where it does not."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["PERMISSION_FIX", "counters_kept_from_us"]

PERMISSION_FIX = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nsight.conf;"
    " reboot (or as root; a container: --cap-add SYS_ADMIN)"
)
_PARAMS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 21


def counters_kept_from_us() -> bool:
    """Whether the driver keeps counters for administrators, and this process is none of them."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in _PARAMS.read_text(encoding="utf-8")
    except OSError:
        restricted = False
    return restricted and not _is_admin()


def _is_admin() -> bool:
    """Whether this process has what the driver asks for: CAP_SYS_ADMIN, which root in a container often lacks."""
    try:
        held = re.search(r"^CapEff:\s*([0-9a-f]+)", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        held = None
    if held is None:
        return hasattr(os, "geteuid") and os.geteuid() == 0
    return bool(int(held[1], 16) >> _CAP_SYS_ADMIN & 1)
