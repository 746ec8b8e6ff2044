"""Runs every test on the same footing: shapes checked at run time in the inner rooms, fresh memory full of NaN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from jaxtyping import config, install_import_hook

# The front door has its own messages for bad input; behind it, every annotated shape is checked.
install_import_hook(["relpos.backends", "relpos.terms"], "beartype.beartype")

from relpos import backends  # noqa: E402  # after the hook
from relpos._native import kernel  # noqa: E402

# Tensors of a few hundred numbers gain nothing from threads.
torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every reported case twice: on the backend that "auto" takes, and on `blocked`, which runs every scheme."""
    if metafunc.definition.path.name.startswith("test_cases_"):
        metafunc.parametrize("_preferred", ["auto", "blocked"], indirect=True)


@pytest.fixture(autouse=True)
def _preferred(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is named comes first in the order of choice."""
    first = getattr(request, "param", "auto")
    if first != "auto":
        others = {name: module for name, module in backends.BACKENDS.items() if name != first}
        monkeypatch.setattr(backends, "BACKENDS", {first: backends.BACKENDS[first], **others})


@pytest.fixture(autouse=True)
def _shapes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking the shapes of a short call takes twice as long as the call: what runs hundreds of times goes without."""
    if request.node.get_closest_marker("shapes_unchecked"):
        monkeypatch.setattr(config, "jaxtyping_disable", True)


@pytest.fixture(params=["avx512", "avx2", "portable"])
def _loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each of the native kernel's loops that this processor has."""
    library = kernel.library()
    if library is None:
        pytest.skip("no kernel was built")
    before = kernel.loops.__wrapped__().encode()
    if library.relpos_choose(request.param.encode()) != request.param.encode():
        library.relpos_choose(before)
        pytest.skip("this processor has no such loops")
    yield
    library.relpos_choose(before)


settings.register_profile("relpos", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("relpos")


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """The same random numbers in every test, and NaN in memory that nobody wrote."""
    torch.manual_seed(0)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
