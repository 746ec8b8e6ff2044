"""Peak memory of one call in a process of its own: `python -m relpos.bench.memory` with a work and a contender's name.

The peak is that of the operating system (resident pages), reset after the inputs were made and torch has run once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from relpos.bench.agree import given
from relpos.bench.rivals import Contender, contenders
from relpos.bench.work import Work

#: Freed tensors go back to the system at once, so that the peak is that of tensors which live together. Otherwise glibc
#: keeps some of them, or does not: the same call took 45 MiB or 165.
HEAP = {"MALLOC_MMAP_THRESHOLD_": "65536"}
STATUS, RESET, TOTAL = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")


def extra_peak(work: Work, contender: str) -> int | str:
    """Bytes that one call takes beyond its inputs, or why nobody knows."""
    if (
        work.task not in _by_name(contender).is_linear_in
        and 3 * 4 * work.batch * work.heads * work.length**2 > _available()
    ):
        return "scores, bias and mask of all pairs would not fit into this machine's memory"
    return alone("relpos.bench.memory", json.dumps(work.to_json()), contender)


def alone(module: str, *arguments: str) -> int | str:
    """What `python -m module` with these arguments finds by `extra`, in bytes, or why nobody knows."""
    if not RESET.exists():
        return "this system does not tell a process its peak memory"
    command = [sys.executable, "-m", module, *arguments]
    environment = os.environ | HEAP
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603  # ours
    if done.returncode:
        return f"its process failed ({done.returncode}): {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return int(done.stdout)


def extra(call: Callable[[], object]) -> int:
    """Bytes of this process at the peak of `call`, beyond those before it."""
    RESET.write_text("5")
    before = _field(STATUS, "VmRSS")
    call()
    return 1024 * (_field(STATUS, "VmHWM") - before)


def _by_name(name: str) -> Contender:
    return next(contender for contender in contenders() if contender.name == name)


def _call(work: Work, contender: Contender) -> int:
    scheme = work.build()
    attend = contender.prepare(work, scheme)
    if isinstance(attend, str):
        raise SystemExit(attend)
    inputs = given(contender, work.inputs())

    def step() -> None:
        with torch.set_grad_enabled(work.task == "train"):
            output = attend(*inputs)
            if work.task == "train":
                output.backward(torch.ones_like(output))

    return extra(step)


def _available() -> int:
    return 1024 * _field(TOTAL, "MemAvailable") if TOTAL.exists() else sys.maxsize


def _field(path: Path, field: str) -> int:
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{field}:"))


def main() -> None:
    """One measurement, printed in bytes."""
    work, contender = Work(**json.loads(sys.argv[1])), _by_name(sys.argv[2])
    warm = replace(work, length=64)
    attend = contender.prepare(warm, warm.build())
    if not isinstance(attend, str):
        attend(*warm.inputs())
    sys.stdout.write(str(_call(work, contender)))


if __name__ == "__main__":
    main()
