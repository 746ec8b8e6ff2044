"""The native kernel is there, absent or broken, and which of these it is gets said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import relpos
from relpos import _native
from relpos._native import kernel


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the library is looked for, empty."""
    monkeypatch.setattr(_native, "__path__", [str(tmp_path)])
    for cached in (kernel.library, kernel.loops):
        cached.cache_clear()
    yield tmp_path
    for cached in (kernel.library, kernel.loops):
        cached.cache_clear()


def attend() -> torch.Tensor:
    x = torch.ones(1, 2, 3, 4)
    return relpos.attention(x, x, x, relpos.Shaw(2, 4, 2))


def test_without_a_kernel_torch_stands_in_and_explain_says_so(folder: Path) -> None:
    assert kernel.library() is None
    x = torch.ones(1, 2, 3, 4)
    assert "native   not built: torch in its place" in str(relpos.explain(x, x, x, relpos.Shaw(2, 4, 2)))
    assert attend().isfinite().all()


def test_a_broken_kernel_is_an_error_with_its_reason(folder: Path) -> None:
    (folder / kernel.NAME).write_bytes(b"not a library")
    with pytest.raises(ImportError, match=rf"{kernel.NAME} is there and does not load: .*What to do: install relpos"):
        attend()
