"""Kernel or twin."""

from __future__ import annotations

from types import ModuleType

from relpos._native import kernel, twin
from relpos._native.block import Block


def chosen(block: Block) -> ModuleType:
    """The module that computes this block."""
    return kernel if kernel.library() is not None and kernel.takes(block) else twin
