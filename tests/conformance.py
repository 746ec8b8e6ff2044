"""Every scheme, built without being asked: the registry gives the names, the constructor says what it needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import relpos
from relpos.backends import BACKENDS
from relpos.schemes import SCHEMES, Scheme

HEADS, HEAD_DIM, EMBED_DIM = 4, 8, 32

#: Values for constructor arguments without a default; a new scheme with a new kind of argument adds it here.
NEEDS = {
    "num_heads": HEADS,
    "head_dim": HEAD_DIM,
    "embed_dim": EMBED_DIM,
    "max_len": 64,
    "max_distance": 5,
    "method": 1,
}

#: Settings besides the defaults.
VARIANTS: dict[str, list[dict[str, object]]] = {
    "shaw_bias": [{"symmetric": True}],
    "shaw": [{"per_head": True}, {"values": False, "max_distance": (6, 2)}],
    "huang": [{"method": 2}, {"method": 3}, {"method": 4}],
    "t5": [{"bidirectional": False, "num_buckets": 8, "max_distance": 20, "bias_scale": 0.5, "scale": None}],
    "alibi": [{"learned": True}, {"slopes": [0.5, -0.25, 0.0, 1.0], "bias_scale": 0.3}],
    "deberta": [
        {"num_buckets": None, "max_distance": 6},
        {"num_buckets": 4, "max_distance": 10, "parts": ("c2p", "p2c", "p2p")},
    ],
    "fire": [{"initial_threshold": 3.0, "width": 5}],
    "rope": [{"layout": "interleaved"}, {"rotary_dim": 4, "base": 100.0}],
}

Built = tuple[str, dict[str, object]]
ALL: list[Built] = [(name, options) for name in SCHEMES for options in [{}, *VARIANTS.get(name, [])]]
RELATIVE = [built for built in ALL if SCHEMES[built[0]].encodes != "position"]
ABSOLUTE = [built for built in ALL if SCHEMES[built[0]].encodes == "position"]
#: FIRE interpolates by the query's own position: true positions matter, and not only distances.
INVARIANT = [built for built in RELATIVE if built[0] != "fire"]
DISTANCE = [built for built in ALL if SCHEMES[built[0]].encodes == "distance"]


def name_of(built: Built) -> str:
    """A test id."""
    return "-".join([built[0], *(f"{key}={value}" for key, value in built[1].items())])


def build(built: Built, dtype: torch.dtype = torch.float64, **more: object) -> Scheme:
    """The scheme, its tables filled with numbers that make a difference."""
    name, options = built
    parameters = inspect.signature(SCHEMES[name]).parameters.values()
    needed = {p.name: NEEDS[p.name] for p in parameters if p.default is inspect.Parameter.empty}
    scheme = relpos.make(name, **{**needed, **options, **more}).to(dtype)
    generator = torch.Generator().manual_seed(7)
    for table in scheme.parameters():
        if not table.is_meta:
            nn.init.normal_(table, std=0.7, generator=generator)
    return scheme


def backends_of(built: Built) -> list[str]:
    """The backends that run a plain call with this scheme."""
    refused = relpos.explain(*tensors(dtype=torch.float32), build(built, torch.float32), is_causal=True).refused
    chosen_later = {name: why for name, why in refused.items() if not why[0].endswith("was chosen before it")}
    return [name for name in BACKENDS if name not in chosen_later]


def tensors(
    batch: int = 2,
    query_len: int = 6,
    key_len: int | None = None,
    heads: int = HEADS,
    groups: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random query, key and value."""
    generator = torch.Generator().manual_seed(seed)
    key_len = query_len if key_len is None else key_len
    groups = heads if groups is None else groups
    query = torch.randn(batch, heads, query_len, HEAD_DIM, dtype=torch.float64, generator=generator)
    key, value = torch.randn(2, batch, groups, key_len, HEAD_DIM, dtype=torch.float64, generator=generator)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def allocations(work: Callable[[], object]) -> list[int]:
    """Bytes of every allocation (positive) and release (negative) of `work`, torch's kernels included, in order."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    return [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]


def gradients(output: Tensor, inputs: Sequence[Tensor], scheme: Scheme) -> list[Tensor]:
    """Gradients of a fixed mixture of the output: for the inputs, then for every table; zeros where unused."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    wanted = [*inputs, *scheme.parameters()]
    return list(torch.autograd.grad((output * weights).sum(), wanted, materialize_grads=True))


#: Every relative scheme on every backend that runs it.
EVERYWHERE: list[tuple[Built, str]] = [(built, backend) for built in RELATIVE for backend in backends_of(built)]


def place_of(pair: tuple[Built, str]) -> str:
    """A test id."""
    return f"{name_of(pair[0])}-{pair[1]}"
