"""Every reported case twice: on the backend that "auto" takes, and on `blocked`, which runs every scheme."""

from __future__ import annotations

import pytest

from relpos import backends


@pytest.fixture(autouse=True, params=["auto", "blocked"])
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`blocked` first in the order of choice."""
    if request.param == "blocked":
        others = {name: module for name, module in backends.BACKENDS.items() if name != "blocked"}
        monkeypatch.setattr(backends, "BACKENDS", {"blocked": backends.BACKENDS["blocked"], **others})
