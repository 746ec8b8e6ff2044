"""How a call is computed. One file a backend, and the order of choice here.

A backend is a module with `why_not(call) -> list[str]` (why it cannot run the call; empty = it can) and `run(call)`.
A backend asked for by name runs or raises; only "auto" chooses.
"""

from __future__ import annotations

from types import ModuleType

from jaxtyping import Float
from torch import Tensor

from relpos import errors
from relpos.backends import blocked, reference, sdpa
from relpos.backends.call import Call

#: Name -> backend, the preferred first; `reference` runs everything and so comes last.
BACKENDS: dict[str, ModuleType] = {"sdpa": sdpa, "blocked": blocked, "reference": reference}


def choose(call: Call) -> str:
    """The name of the backend that runs this call.

    Raises: ValueError for an unknown name; BackendRefused where a backend named by the caller cannot run the call.
    """
    backend = call.backend
    if backend == "auto":
        for name, module in BACKENDS.items():
            if not module.why_not(call):
                return name
    if backend not in BACKENDS:
        raise errors.unknown_name("attention", "backend", backend, ["auto", *BACKENDS])
    reasons = BACKENDS[backend].why_not(call)
    if reasons:
        raise errors.BackendRefused(
            f"attention: backend {backend!r} cannot run this call: {'; '.join(reasons)}. "
            'What to do: change the call, or let backend="auto" choose.'
        )
    return backend


def run(call: Call) -> Float[Tensor, "B H Tq Dv"]:
    """The output of `call`, by the backend that it asks for, or by the first that can."""
    output: Tensor = BACKENDS[choose(call)].run(call)
    return output
