"""What numbers were computed with: versions, processor, threads."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

import relpos


def environment(threads: int) -> dict[str, Any]:
    """The versions and the machine that numbers were computed with."""
    return {
        "relpos": relpos.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
    }


def _cpu_name() -> str:
    """The processor's name; `platform.processor()` is empty on most Linux systems."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
