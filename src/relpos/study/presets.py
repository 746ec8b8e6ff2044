"""The settings under which the study trains each scheme, in one table.

They are chosen so that every row of every table is trained at length L: a clipping distance at half the trained length
(its last row, which stands for all that is farther, then occurs in half of the queries), and buckets that end at L.
With T5's published 128 and a trained length of 64 the far buckets would stay at their start, and the study would
measure that start.
"""

import inspect
from collections.abc import Callable, Mapping

import relpos
from relpos import errors
from relpos.functional import alibi_slopes
from relpos.schemes import SCHEMES, Scheme

# The control: ALiBi's slopes with their sign turned around reward distance instead of punishing it.
REVERSED = "alibi_reversed"

_SETTINGS: dict[str, Callable[[int], Mapping[str, object]]] = {
    "learned": lambda length: {"max_len": length},
    "shaw_bias": lambda length: {"max_distance": max(1, length // 2)},
    "shaw": lambda length: {"max_distance": max(1, length // 2)},
    "huang": lambda length: {"max_distance": max(1, length // 2), "method": 4},
    # scale=None is 1/sqrt(D): T5's own scale of 1 belongs to its own initialisation, which this network does not have.
    "t5": lambda length: {
        "num_buckets": min(32, length),
        "max_distance": length,
        "bidirectional": False,
        "scale": None,
    },
    "deberta": lambda length: {"num_buckets": max(2, min(32, length // 2)), "max_distance": length},
}


def scheme_names() -> tuple[str, ...]:
    """The names that the study takes: every scheme of the library, and the control."""
    return (*relpos.names(), REVERSED)


def check_scheme_name(name: str) -> None:
    """Refuse an unknown scheme, naming the nearest one."""
    if name not in scheme_names():
        raise errors.unknown_name("relpos study", "scheme", name, scheme_names())


def build_scheme(name: str, *, width: int, heads: int, length: int) -> Scheme:
    """The scheme `name` for a network of `width` channels and `heads` heads that is trained at `length`.

    A scheme without a line in the table gets the sizes that its constructor asks for and its own defaults otherwise.
    """
    check_scheme_name(name)
    if name == REVERSED:
        return relpos.ALiBi(heads, slopes=-alibi_slopes(heads))
    sizes = {"embed_dim": width, "num_heads": heads, "head_dim": width // heads}
    taken = inspect.signature(SCHEMES[name]).parameters
    arguments: dict[str, object] = {key: size for key, size in sizes.items() if key in taken}
    if name in _SETTINGS:
        arguments |= _SETTINGS[name](length)
    return relpos.make(name, **arguments)
