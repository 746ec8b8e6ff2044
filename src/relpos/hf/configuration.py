"""A configuration as patched modules see it: the caller's own in everything, but for who makes the masks.

One configuration may serve several models, of which one is patched. What is written to either is read from both.
"""

from __future__ import annotations

import functools
from typing import Any

from transformers import PreTrainedConfig

from relpos.hf.masks import IMPLEMENTATION


class _View:
    """Its numbers and names are in the dictionary of `original`; the name of the masks is in `implementation`."""

    __slots__ = ()

    @property
    def _attn_implementation_internal(self: Any) -> str:
        return self.implementation  # type: ignore[no-any-return]

    @_attn_implementation_internal.setter
    def _attn_implementation_internal(self: Any, name: str) -> None:
        self.implementation = name

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return view, (self.original, self.implementation)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("original", "implementation"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)


@functools.cache
def _view_class(kind: type[PreTrainedConfig]) -> type:
    """The class of views of a class of configurations; transformers look models up by its name."""
    names = {
        "__slots__": ("original", "implementation"),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    return type(kind.__name__, (_View, kind), names)


def view(config: PreTrainedConfig, implementation: str = IMPLEMENTATION) -> Any:
    """`config`, with relpos's masks."""
    kind: Any = type(config)
    seen: Any = object.__new__(_view_class(kind))
    seen.original, seen.implementation = config, implementation
    object.__setattr__(seen, "__dict__", vars(config))
    return seen


def original(config: Any) -> Any:
    """The configuration that `view` was given; any other as it is."""
    is_view: bool = isinstance(config, _View)
    return config.original if is_view else config
