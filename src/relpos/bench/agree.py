"""Whether a contender computes the work at all: against float64, written out here, before anything is timed."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from relpos.bench.rivals import LIMIT, Attend, Contender
from relpos.bench.work import Work
from relpos.schemes import Scheme

#: Query rows that are compared at the full length.
ROWS = 16
#: Length at which gradients are compared.
GRADIENT_LENGTH = 160


def disagreement(contender: Contender, work: Work, scheme: Scheme, attend: Attend) -> str | None:
    """What is wrong with the output of `attend`, and for training with its gradients; None where nothing is."""
    if contender.name == LIMIT:
        return None
    inputs = given(contender, work.inputs())
    with torch.no_grad():
        output = attend(*inputs)
    rows = torch.linspace(0, work.queries - 1, min(ROWS, work.queries)).long().unique()
    query, key, value = (x.double() for x in inputs)
    expected = _exact(work, scheme, query, key, value, rows)
    wrong = _beyond(work, output[:, :, rows], expected, "output")
    if wrong or work.task != "train":
        return wrong
    return _wrong_gradient(contender, replace(work, length=min(work.length, GRADIENT_LENGTH), batch=1))


def given(contender: Contender, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What a contender is called with."""
    return (inputs[0],) * 3 if contender.from_hidden else inputs


def _wrong_gradient(contender: Contender, work: Work) -> str | None:
    scheme, exact_scheme = work.build(), work.build().double()
    attend = contender.prepare(work, scheme)
    if isinstance(attend, str):
        return attend
    inputs = given(contender, work.inputs())
    exact_inputs = given(contender, tuple(x.detach().double().requires_grad_() for x in inputs))  # type: ignore[arg-type]
    output, expected = attend(*inputs), _exact(work, exact_scheme, *exact_inputs)
    direction = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    leaves, exact_leaves = (
        inputs[: 1 if contender.from_hidden else 3],
        exact_inputs[: 1 if contender.from_hidden else 3],
    )
    mine = torch.autograd.grad((output * direction).sum(), leaves)
    theirs = torch.autograd.grad((expected * direction).sum(), exact_leaves)
    for name, got, wanted in zip(("query", "key", "value"), mine, theirs, strict=False):
        wrong = _beyond(work, got, wanted, f"gradient of {name}")
        if wrong:
            return wrong
    return None


def _exact(work: Work, scheme: Scheme, query: Tensor, key: Tensor, value: Tensor, rows: Tensor | None = None) -> Tensor:
    bias = work.bias(scheme, rows, torch.float64)
    query = query if rows is None else query[:, :, rows]
    return (query @ key.mT / math.sqrt(work.width) + bias).softmax(-1) @ value


def _beyond(work: Work, got: Tensor, expected: Tensor, what: str) -> str | None:
    """An error of more than a few roundings of the largest number, in words."""
    roundings = 256 if work.dtype in ("float32", "float64") else 8
    allowed = roundings * torch.finfo(getattr(torch, work.dtype)).eps * max(expected.abs().max().item(), 1.0)
    error = (got.double() - expected).abs().max().item()
    return None if error <= allowed else f"{what} is off by {error:.2g}, allowed {allowed:.2g}"
