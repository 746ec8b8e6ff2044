"""One paper, one file. A new scheme is its file and its line here."""

import inspect

from relpos import errors
from relpos.schemes.alibi import ALiBi
from relpos.schemes.deberta import Disentangled
from relpos.schemes.fire import FIRE
from relpos.schemes.huang import Huang
from relpos.schemes.learned import LearnedAbsolute
from relpos.schemes.nope import NoPE
from relpos.schemes.rope import Rotary
from relpos.schemes.scheme import SCHEMES, Scheme
from relpos.schemes.shaw import Shaw
from relpos.schemes.shaw_bias import ShawBias
from relpos.schemes.sinusoidal import Sinusoidal
from relpos.schemes.t5 import T5Bias

__all__ = [
    "FIRE",
    "SCHEMES",
    "ALiBi",
    "Disentangled",
    "Huang",
    "LearnedAbsolute",
    "NoPE",
    "Rotary",
    "Scheme",
    "Shaw",
    "ShawBias",
    "Sinusoidal",
    "T5Bias",
    "make",
    "names",
]


def names() -> list[str]:
    """Short names of all schemes, as `make` takes them.

    >>> "alibi" in names()
    True
    """
    return sorted(SCHEMES)


def make(name: str, **kwargs: object) -> Scheme:
    """The scheme of that name, built with its constructor's arguments.

    Raises: ValueError for an unknown name, with the nearest known one.

    >>> make("alibi", num_heads=2)
    ALiBi(num_heads=2, slopes=[0.0625, 0.003906], learned=False, max_exponent=8.0, bias_scale=1.0)
    """
    if not isinstance(name, str) or name not in SCHEMES:
        raise errors.unknown_name("make", "scheme", name, names())
    signature = inspect.signature(SCHEMES[name])
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise errors.wrong_type(
            f"make({name!r})", f"{', '.join(kwargs) or 'no arguments'} ({error})", f"{signature}", "pass what it takes."
        ) from None
    return SCHEMES[name](**kwargs)
