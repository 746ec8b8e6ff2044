"""Timing, memory and rivals: what a scheme costs beside attention without one, and beside what people use today."""

from relpos.bench.run import Entry, Report, run_bench
from relpos.bench.work import DEFAULT, DEFAULT_MEMORY, Work

__all__ = ["DEFAULT", "DEFAULT_MEMORY", "Entry", "Report", "Work", "run_bench"]
