"""The front door: torch's attention call with a position scheme."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relpos import _native, arguments, backends
from relpos.backends import reference
from relpos.backends.call import Call
from relpos.positions import Positions
from relpos.schemes.scheme import Scheme
from relpos.terms import Term

Window = int | tuple[int, int]
Given = Scheme | Term
P = ParamSpec("P")
Result = TypeVar("Result")


def _call(
    query: Float[Tensor, "B H Tq D"],
    key: Float[Tensor, "B G Tk D"],
    value: Float[Tensor, "B G Tk Dv"],
    scheme: Given | Iterable[Given] | None = None,
    *,
    is_causal: bool = False,
    positions: Positions | None = None,
    attn_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "B Tk"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    window: Window | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Call:
    """The arguments of `attention`, checked, with every default resolved."""
    arguments.check_kinds(query=query, key=key, value=value)
    query, key, value = _autocast(query, key, value)
    arguments.check_tensors(query, key, value)
    arguments.check_masks(query, key, attn_mask, key_mask, lengths)
    arguments.check_numbers(is_causal, scale, dropout_p)
    schemes, given = arguments.split_terms(scheme)
    schemes = arguments.list_schemes("attention", schemes, query.shape[1], query.shape[3])
    arguments.check_devices(query, schemes)
    if positions is None:
        positions = Positions.arange(query.shape[2], key.shape[2], device=query.device)
    else:
        arguments.check_positions(query, key, positions)
        positions = positions.to(query.device)
    arguments.check_given(query, given)
    terms = (*(term for one in schemes for term in one.terms(positions)), *given)
    arguments.check_terms(query, value, terms)
    sides = arguments.resolve_window(window)
    if not positions.anchored and not is_causal and (terms or sides is not None):
        arguments.refuse_missing_anchor(query, key)
    return Call(
        query=query,
        key=key,
        value=value,
        positions=positions,
        terms=terms,
        scale=_scale(query, schemes, scale),
        is_causal=is_causal,
        window=sides,
        attn_mask=attn_mask,
        key_mask=key_mask,
        lengths=lengths,
        dropout_p=float(dropout_p),
        backend=backend,
    )


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Inputs in the dtype that autocast gives torch's own attention: float64 stays as it is."""
    if not _is_autocast(tensors[0]):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    castable = (torch.float32, torch.float16, torch.bfloat16)
    return tuple(tensor.to(dtype) if tensor.dtype in castable else tensor for tensor in tensors)


def _without_autocast(compute: Callable[[Call], Tensor], call: Call) -> Tensor:
    """Inside, tables and probabilities keep the dtypes that the backend gives them."""
    if not _is_autocast(call.query):
        return compute(call)
    with torch.autocast(call.query.device.type, enabled=False):
        return compute(call)


def _is_autocast(x: Tensor) -> bool:
    if x.is_cpu:
        return torch.is_autocast_enabled("cpu")
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def _scale(query: Tensor, schemes: list[Scheme], scale: float | None) -> float:
    """The caller's scale, else the one that the schemes declare, else `1 / sqrt(D)`."""
    if scale is not None:
        return float(scale)
    declared = {one.scale for one in schemes if one.scale is not None}
    if len(declared) > 1:
        arguments.refuse_two_scales(schemes)
    return declared.pop() if declared else 1.0 / math.sqrt(query.shape[-1])


def _with_arguments_of(
    prepare: Callable[P, Call],
) -> Callable[[Callable[[Call], Result]], Callable[P, Result]]:
    """Turn a function of a `Call` into one that takes the arguments which `prepare` makes it from."""

    def decorate(door: Callable[[Call], Result]) -> Callable[P, Result]:
        @functools.wraps(door)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> Result:
            return door(prepare(*args, **kwargs))

        signature = inspect.signature(prepare)
        returns = inspect.signature(door).return_annotation
        wrapped.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        return wrapped

    return decorate


def attention(
    query: Float[Tensor, "B H Tq D"],
    key: Float[Tensor, "B G Tk D"],
    value: Float[Tensor, "B G Tk Dv"],
    scheme: Given | Iterable[Given] | None = None,
    *,
    is_causal: bool = False,
    positions: Positions | None = None,
    attn_mask: Bool[Tensor, "..."] | None = None,
    key_mask: Bool[Tensor, "B Tk"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    window: Window | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "B H Tq Dv"]:
    r"""Scaled dot product attention with a position scheme; arguments as in torch where the names are the same.

        score  = scale * (rotated query . key, with gain, + query x distance + key x distance) + distance bias
                 + key bias + pair bias
        output = softmax(score) @ (value + value x distance)

    Args:
        query, key, value: `[B, H, Tq, D]`, `[B, G, Tk, D]`, `[B, G, Tk, Dv]` of one floating dtype and device;
            G divides H, and query head h reads key head `h // (H / G)`.
        scheme: a relative scheme, a list of them (what they add is summed), or None. A term of `relpos.terms` may stand
            where a scheme may: a table of one's own, say.
        is_causal: a key is visible iff its position is not after the query's. Without `positions`, the last query
            stands at the last key; `Positions.arange(Tq, Tk, query_start=0)` anchors the first at the first, as torch.
        positions: who stands where; needed where Tq != Tk, attention is not causal and anything depends on distance.
        attn_mask: bool, True = may attend, `[Tq, Tk]` or 4-D broadcastable to `[B, H, Tq, Tk]`.
        key_mask: bool `[B, Tk]`, True = a real token: the usual padding mask, padding on either side.
        lengths: int `[B]`; keys at or past `lengths[b]` are hidden, and if Tq == Tk the output rows there are zero.
        window: `(back, ahead)`, or an int for both: visible iff `-back <= key - query <= ahead`, itself included.
            Hugging Face's `sliding_window` counts one more than `back`.
        scale: replaces the scheme's own (1.0 for T5, `1 / sqrt(D (1 + parts))` for DeBERTa, else `1 / sqrt(D)`).
        dropout_p: acts whenever it is given, as in torch; pass 0.0 in eval.
        backend: "auto", or one by name, which then runs or raises.

    Returns:
        `[B, H, Tq, Dv]` in the dtype of the query; under autocast as torch's own attention. A query that may attend to
        nothing gives zeros and zero gradients. Keys that no query of their batch row may see have no influence, also
        where they hold inf or NaN.

    Numerics: the reference backend computes in float32 (float64 for float64) and rounds once. The sdpa backend computes
        as torch's own attention: bias and sums in float32, probabilities rounded to the dtype of the query.
    Cost: that of the backend; `relpos.explain` with the same arguments names it. Sdpa: memory linear in the length,
        time near that of attention without a bias (benchmarks/README.md). Reference: `B H Tq Tk` numbers.
    Raises: ValueError and TypeError for what cannot be meant; BackendRefused where a named backend cannot run.
        A gradient of a gradient needs `backend="reference"`; from sdpa it is a RuntimeError in the backward pass.

    >>> import relpos
    >>> q = k = v = torch.randn(1, 8, 16, 64)
    >>> relpos.attention(q, k, v, relpos.T5Bias(num_heads=8)).shape
    torch.Size([1, 8, 16, 64])
    """
    call = _call(
        query,
        key,
        value,
        scheme,
        is_causal=is_causal,
        positions=positions,
        attn_mask=attn_mask,
        key_mask=key_mask,
        lengths=lengths,
        window=window,
        scale=scale,
        dropout_p=dropout_p,
        backend=backend,
    )
    return _without_autocast(backends.run, call)


@_with_arguments_of(_call)
def attention_weights(call: Call) -> Float[Tensor, "B H Tq Tk"]:
    """The probabilities of `attention` with the same arguments, `[B, H, Tq, Tk]`, always by the reference route.

    >>> q = k = v = torch.zeros(1, 1, 2, 4)
    >>> attention_weights(q, k, v, is_causal=True)[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    backends.choose(call)
    return _without_autocast(reference.weights, call)


@dataclass(frozen=True)
class Explanation:
    """What `attention` would do with a call: the backend, the scale, the terms, and why not the other backends.

    `native` names the loops of the native kernel, which "blocked" uses, or says that none was built.
    """

    backend: str
    scale: float
    terms: tuple[str, ...]
    refused: dict[str, list[str]]
    native: str

    def __str__(self) -> str:
        lines = [
            f"backend  {self.backend}",
            f"scale    {self.scale:.6g}",
            f"terms    {', '.join(self.terms) or 'none'}",
            *([f"native   {self.native}"] if self.backend == "blocked" else []),
        ]
        lines += [f"not {name}: {'; '.join(reasons)}" for name, reasons in self.refused.items()]
        return "\n".join(lines)


@_with_arguments_of(_call)
def explain(call: Call) -> Explanation:
    """Which backend `attention` takes for these arguments, at which scale, with which terms, and why not the others.

    >>> import relpos
    >>> q = k = v = torch.zeros(1, 8, 16, 64)
    >>> print(relpos.explain(q, k, v, relpos.T5Bias(num_heads=8)))
    backend  sdpa
    scale    1
    terms    DistanceBias
    not blocked: 'sdpa' was chosen before it
    not reference: 'sdpa' was chosen before it
    """
    chosen = backends.choose(call)
    reasons = {name: module.why_not(call) for name, module in backends.BACKENDS.items() if name != chosen}
    refused = {name: why or [f"{chosen!r} was chosen before it"] for name, why in reasons.items()}
    native = _native.loops() or "not built: torch in its place"
    return Explanation(chosen, call.scale, tuple(type(term).__name__ for term in call.terms), refused, native)
