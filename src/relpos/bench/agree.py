"""Whether a contender computes the work at all: against float64, written out here, before anything is timed."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from relpos.bench.rivals import LIMIT, Contender
from relpos.bench.work import SCHEMES, Attend, Work
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
    names = [*(("hidden",) if contender.from_hidden else ("query", "key", "value")), *dict(scheme.named_parameters())]
    mine, theirs = (
        torch.autograd.grad(
            (result * direction).sum(),
            [*given_inputs[: 1 if contender.from_hidden else 3], *given_scheme.parameters()],
            allow_unused=True,
        )
        for result, given_inputs, given_scheme in ((output, inputs, scheme), (expected, exact_inputs, exact_scheme))
    )
    for name, got, wanted in zip(names, mine, theirs, strict=True):
        assert wanted is not None
        wrong = f"{name} gets no gradient" if got is None else _beyond(work, got, wanted, f"gradient of {name}")
        if wrong:
            return wrong
    return None


def _exact(work: Work, scheme: Scheme, query: Tensor, key: Tensor, value: Tensor, rows: Tensor | None = None) -> Tensor:
    """The output of these query rows, or all."""
    if work.has_content:
        of = range(work.queries) if rows is None else rows.tolist()
        tables = {name: table.double() for name, table in scheme.named_parameters()}
        one = _deberta if work.scheme == "deberta" else _shaw
        return torch.stack([one(work, tables, query[:, :, i], key, value, i) for i in of], 2)
    bias = work.bias(scheme, rows, torch.float64)
    query = query if rows is None else query[:, :, rows]
    return (query @ key.mT / math.sqrt(work.width) + bias).softmax(-1) @ value


def _deberta(work: Work, tables: dict[str, Tensor], query: Tensor, key: Tensor, value: Tensor, row: int) -> Tensor:
    """He et al. 2021, equations 2 to 4, for one query `[B, H, D]`; p2c too at delta(i, j), as released models."""
    seen, here = _seen(work, row)
    span, furthest = SCHEMES["deberta"]["num_buckets"], SCHEMES["deberta"]["max_distance"]
    delta = [min(max(span + deberta_bucket(here - j, span, furthest), 0), 2 * span - 1) for j in seen]
    key, value = key[:, :, : len(seen)], value[:, :, : len(seen)]
    content = torch.einsum("bhd,bhjd->bhj", query, key)
    c2p = torch.einsum("bhd,hjd->bhj", query, tables["c2p_table"][:, delta])
    p2c = torch.einsum("bhjd,hjd->bhj", key, tables["p2c_table"][:, delta])
    weights = ((content + c2p + p2c) / math.sqrt(3 * work.width)).softmax(-1)
    return torch.einsum("bhj,bhjd->bhd", weights, value)


def deberta_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Logarithmic bucket of `query - key` in DeBERTa v2 and v3, one distance at a time."""
    middle, size = num_buckets // 2, abs(distance)
    if size <= middle:
        return distance
    octaves = math.log(size / middle) / math.log((max_distance - 1) / middle)
    return int(math.copysign(middle + math.ceil(octaves * (middle - 1)), distance))


def _shaw(work: Work, tables: dict[str, Tensor], query: Tensor, key: Tensor, value: Tensor, row: int) -> Tensor:
    """Shaw et al. 2018, equations 3 to 5, for one query `[B, H, D]`: a vector added to every key and every value."""
    seen, here = _seen(work, row)
    furthest = SCHEMES["shaw"]["max_distance"]
    clipped = [min(max(j - here, -furthest), furthest) + furthest for j in seen]
    keys = key[:, :, : len(seen)] + tables["key_table"][clipped]
    values = value[:, :, : len(seen)] + tables["value_table"][clipped]
    weights = (torch.einsum("bhd,bhjd->bhj", query, keys) / math.sqrt(work.width)).softmax(-1)
    return torch.einsum("bhj,bhjd->bhd", weights, values)


def _seen(work: Work, row: int) -> tuple[range, int]:
    """The keys that a query sees, from the first on, and where it stands itself."""
    here = row + work.length - work.queries
    return range(here + 1 if work.is_causal else work.length), here


def _beyond(work: Work, got: Tensor, expected: Tensor, what: str) -> str | None:
    """An error of more than a few roundings of the largest number, in words."""
    roundings = 256 if work.dtype in ("float32", "float64") else 8
    allowed = roundings * torch.finfo(getattr(torch, work.dtype)).eps * max(expected.abs().max().item(), 1.0)
    error = (got.double() - expected).abs().max().item()
    return None if error <= allowed else f"{what} is off by {error:.2g}, allowed {allowed:.2g}"
