"""Runs every test on the same footing: shapes checked at run time in the inner rooms, fresh memory full of NaN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# The front door has its own messages for bad input; behind it, every annotated shape is checked.
install_import_hook(["relpos.backends", "relpos.terms"], "beartype.beartype")

# Tensors of a few hundred numbers gain nothing from threads.
torch.set_num_threads(1)

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
