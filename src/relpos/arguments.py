"""What the front door refuses: arguments of `attention` that cannot be meant, each with what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from relpos import errors
from relpos.positions import Positions
from relpos.schemes.absolute import Absolute, refuse_in_attention
from relpos.schemes.scheme import Scheme
from relpos.terms import DistanceGain, KeyBias, KeyDistance, PairBias, QueryDistance, Rotation, Term, ValueDistance

CALL = "attention"
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_kinds(**tensors: Tensor) -> None:
    """Tensors, before anything is asked of them."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise errors.wrong_type(CALL, f"{name} of {type(tensor).__name__}", "a tensor", f"pass {name} as a tensor.")


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Query, key and value: four dimensions, shapes that fit, one dtype, one device."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise errors.value(
                CALL, f"{name} of shape {list(tensor.shape)}", "[batch, heads, tokens, width]", f"reshape {name}."
            )
        if tensor.dtype not in FLOATS:
            raise errors.wrong_type(CALL, f"{name} of {tensor.dtype}", ", ".join(map(str, FLOATS)), f"cast {name}.")
        if tensor.dtype != query.dtype:
            raise errors.wrong_type(
                CALL, f"{name} of {tensor.dtype} with query of {query.dtype}", "one dtype", "cast them alike."
            )
        if tensor.device != query.device:
            raise errors.value(
                CALL, f"{name} on {tensor.device} with query on {query.device}", "one device", f"move {name}."
            )
    (batch, heads, _, width), (groups, key_len) = query.shape, key.shape[1:3]
    if key.shape != (batch, groups, key_len, width) or value.shape[:3] != key.shape[:3]:
        raise _shapes(query, key, value, "", "make the shapes agree.")
    if width == 0:
        raise _shapes(query, key, value, " with D >= 1", "heads need a width.")
    if groups == 0 or heads % groups:
        raise _shapes(query, key, value, " with G dividing H", f"{heads} heads cannot share {groups}.")


def _shapes(query: Tensor, key: Tensor, value: Tensor, condition: str, fix: str) -> ValueError:
    return errors.value(
        CALL,
        f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}",
        f"query [B, H, Tq, D], key [B, G, Tk, D], value [B, G, Tk, Dv]{condition}",
        fix,
    )


def check_masks(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, key_mask: Tensor | None, lengths: Tensor | None
) -> None:
    """Masks: boolean, of the shapes that the tensors have, on their device."""
    if attn_mask is None and key_mask is None and lengths is None:
        return
    batch, heads, query_len, key_len = len(query), query.shape[1], query.shape[2], key.shape[2]
    for name, tensor in (("attn_mask", attn_mask), ("key_mask", key_mask), ("lengths", lengths)):
        if tensor is None:
            continue
        check_kinds(**{name: tensor})
        if tensor.device != query.device:
            raise errors.value(CALL, f"{name} on {tensor.device}", f"the query's device, {query.device}", "move it.")
        if name != "lengths" and tensor.dtype != torch.bool:
            raise errors.wrong_type(
                CALL,
                f"{name} of {tensor.dtype}",
                "torch.bool, True = may attend",
                "a bias is a scheme; a mask of numbers becomes one by mask > threshold or mask.bool().",
            )
    if attn_mask is not None:
        full = (batch, heads, query_len, key_len)
        fits = attn_mask.dim() == 4 and all(size in (1, want) for size, want in zip(attn_mask.shape, full, strict=True))
        if not fits and attn_mask.shape != full[2:]:
            raise errors.value(
                CALL,
                f"attn_mask of shape {list(attn_mask.shape)}",
                f"{list(full[2:])}, or four dimensions that broadcast to {list(full)}",
                "index it with None where a batch or head axis is missing.",
            )
    if key_mask is not None and key_mask.shape != (batch, key_len):
        raise errors.value(
            CALL,
            f"key_mask of shape {list(key_mask.shape)}",
            f"{[batch, key_len]}",
            "one entry for each key.",
        )
    if lengths is not None:
        errors.integers(CALL, lengths=lengths)
        if lengths.shape != (batch,):
            raise errors.value(CALL, f"lengths of shape {list(lengths.shape)}", f"[{batch}]", "one count a batch row.")


def check_numbers(is_causal: bool, scale: float | None, dropout_p: float) -> None:
    """`is_causal`, `scale` and `dropout_p`."""
    if is_causal is not True and is_causal is not False:
        errors.flags(CALL, is_causal=is_causal)
    if scale is not None:
        errors.finite(CALL, scale=scale)
    if type(dropout_p) is not float:
        errors.finite(CALL, dropout_p=dropout_p)
    if not 0.0 <= dropout_p <= 1.0:
        raise errors.value(CALL, f"dropout_p={dropout_p}", "0 <= dropout_p <= 1", "pass a probability.")


def resolve_window(window: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """`(back, ahead)` of a window."""
    if window is None:
        return None
    sides = tuple(window) if isinstance(window, tuple | list) else (window, window)
    if len(sides) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in sides):
        raise errors.wrong_type(CALL, f"window={window!r}", "an int or (back, ahead)", "pass whole numbers.")
    if min(sides) < 0:
        raise errors.value(CALL, f"window={window!r}", "back and ahead >= 0", "0 shows each query its own key.")
    longest = torch.iinfo(torch.int64).max
    return min(sides[0], longest), min(sides[1], longest)


def list_schemes(call: str, scheme: object, heads: int, width: int) -> list[Scheme]:
    """The schemes of an argument that may be one, several or None: relative ones, made for these heads."""
    found: list[Scheme] = []
    for one in () if scheme is None else scheme if isinstance(scheme, Iterable) else (scheme,):
        if not isinstance(one, Scheme):
            given = one.__name__ if isinstance(one, type) else type(one).__name__
            raise errors.wrong_type(
                call, f"scheme of {given}", "a scheme, a list of schemes or None", "build one: relpos.make(name, ...)."
            )
        if isinstance(one, Absolute):
            raise refuse_in_attention(one, call)
        name = type(one).__name__
        for what, made_for, given_size in (("num_heads", one.num_heads, heads), ("head_dim", one.head_dim, width)):
            if made_for is not None and made_for != given_size:
                raise errors.value(
                    call,
                    f"{name}({what}={made_for}) for {what}={given_size}",
                    f"{what}={given_size}",
                    f"build {name} for these heads; scheme.heads(start, stop) takes a slice of them.",
                )
        found.append(one)
    return found


def split_terms(scheme: object) -> tuple[object, list[Term]]:
    """An argument that may be one scheme or term, several or None: without the terms, and the terms in it."""
    if isinstance(scheme, Term):
        return None, [scheme]
    if scheme is None or not isinstance(scheme, Iterable):
        return scheme, []
    both = list(scheme)
    return [one for one in both if not isinstance(one, Term)], [one for one in both if isinstance(one, Term)]


def check_given(query: Tensor, terms: Sequence[Term]) -> None:
    """Terms from the caller: tables of as many heads as the query, as wide as it, on its device; whole functions."""
    heads, width = query.shape[1], query.shape[3]
    for term in terms:
        if isinstance(term, PairBias):
            _check_pair_bias(query, term)
        if isinstance(term, QueryDistance | KeyDistance | DistanceGain | ValueDistance):
            shape, name = list(term.table.shape), type(term).__name__
            per_head = isinstance(term, DistanceGain) or len(shape) == 3
            wide = not isinstance(term, ValueDistance) and not (isinstance(term, DistanceGain) and len(shape) == 2)
            if (per_head and shape[0] != heads) or (wide and shape[-1] != width):
                raise errors.value(
                    CALL, f"{name} with a table of shape {shape}", f"{heads} heads of width {width}", "slice the table."
                )
            if term.table.device != query.device:
                raise errors.value(
                    CALL, f"{name} on {term.table.device} with query on {query.device}", "one device", "move the table."
                )


def _check_pair_bias(query: Tensor, term: PairBias) -> None:
    """Tensors on the query's device, and every tensor that learns among them."""
    for tensor in term.tensors:
        if not isinstance(tensor, Tensor):
            raise errors.wrong_type(
                CALL, f"PairBias with tensors of {type(tensor).__name__}", "tensors", "keep settings in the function."
            )
        if tensor.device != query.device:
            raise errors.value(
                CALL, f"PairBias on {tensor.device} with query on {query.device}", "one device", "move its tensors."
            )
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        place = torch.zeros(1, dtype=torch.int64, device=query.device)
        alone = PairBias(term.values, tuple(tensor.detach() for tensor in term.tensors))
        if alone.between(place, place, query.shape[1], torch.promote_types(query.dtype, torch.float32)).requires_grad:
            raise errors.value(
                CALL,
                "PairBias whose function reads a tensor that wants a gradient and is not in its tensors",
                "every such tensor in tensors",
                "take it as an argument of the function: its gradient would be lost.",
            )


def check_devices(query: Tensor, schemes: Sequence[Scheme]) -> None:
    """Learned tables on the device of the query."""
    for scheme in schemes:
        if scheme.device == query.device:
            continue
        for parameter in scheme.parameters():
            if parameter.device != query.device:
                raise errors.value(
                    CALL,
                    f"{type(scheme).__name__} on {parameter.device} with query on {query.device}",
                    "one device",
                    "move the scheme.",
                )


def check_terms(query: Tensor, value: Tensor, terms: Sequence[Term]) -> None:
    """One rotation at most, value vectors as wide as the values, and a key bias for every head and key."""
    if len(terms) > 1 and sum(isinstance(term, Rotation) for term in terms) > 1:
        raise errors.value(CALL, "two rotations", "at most one", "leave one Rotary out of the list.")
    for term in terms:
        if isinstance(term, ValueDistance) and term.table.shape[-1] != value.shape[-1]:
            raise errors.value(
                CALL,
                f"value of width {value.shape[-1]} with value vectors of width {term.table.shape[-1]}",
                "equal widths",
                "build the scheme with head_dim = Dv, or with values=False.",
            )
        if isinstance(term, KeyBias):
            batch, heads, keys = len(query), query.shape[1], value.shape[2]
            if term.values.shape not in ((1, heads, keys), (batch, heads, keys)):
                raise errors.value(
                    CALL,
                    f"KeyBias of shape {list(term.values.shape)}",
                    f"[1, {heads}, {keys}] or [{batch}, {heads}, {keys}]",
                    "give a number for every head and key.",
                )


def check_positions(query: Tensor, key: Tensor, positions: Positions) -> None:
    """Positions of as many queries and keys as there are."""
    if not isinstance(positions, Positions):
        raise errors.wrong_type(
            CALL,
            f"positions of {type(positions).__name__}",
            "relpos.Positions or None",
            "use Positions.explicit(q, k).",
        )
    for what, tensor, length in (("query", positions.query, query.shape[2]), ("key", positions.key, key.shape[2])):
        if tensor.shape not in ((length,), (len(query), length), (1, length)):
            raise errors.value(
                CALL,
                f"{what} positions of shape {list(tensor.shape)}",
                f"[{length}] or [{len(query)}, {length}]",
                f"one position for each {what}.",
            )


def refuse_missing_anchor(query: Tensor, key: Tensor) -> NoReturn:
    """Raise for distances that nobody can know."""
    raise errors.value(
        CALL,
        f"{query.shape[2]} queries and {key.shape[2]} keys, not causal, and nothing that says where the queries stand",
        "positions with a query_start, or is_causal=True, or as many queries as keys",
        f"pass positions=Positions.arange({query.shape[2]}, {key.shape[2]}, query_start=...).",
    )


def refuse_two_scales(schemes: Sequence[Scheme]) -> NoReturn:
    """Raise for schemes that declare different scales."""
    declared = ", ".join(f"{type(one).__name__} {one.scale:g}" for one in schemes if one.scale is not None)
    raise errors.value(CALL, f"different scales ({declared})", "one declared scale", "decide: pass scale=....")
