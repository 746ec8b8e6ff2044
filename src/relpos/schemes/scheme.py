"""What every scheme is: a module that holds learned tables only and says what it adds."""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relpos import errors
from relpos.positions import Positions
from relpos.terms import DistanceBias, PairBias, Term

#: Public short name -> class, filled by the subclasses as they are defined.
SCHEMES: dict[str, type[Scheme]] = {}


class Scheme(nn.Module, ABC):
    """A relative or absolute position scheme; concrete classes are final and name themselves.

    Two questions sort them: `encodes` (an absolute position, or a distance) and `injects_at` (the input embedding,
    the query and key vectors, the scores, the values).

    Attributes:
        name: public short name, as `relpos.make` takes it.
        encodes: "nothing", "position" or "distance".
        injects_at: "nowhere", "input", "query and key", "scores" or "scores and values".
        num_heads: heads that the scheme is made for; None fits any number.
        head_dim: head width that it is made for; None fits any.
        scale: softmax scale that it declares; None leaves it at `1 / sqrt(D)`.
        head_tables: names of the parameters whose first axis is the head.
    """

    name: ClassVar[str]
    encodes: ClassVar[str]
    injects_at: ClassVar[str]
    num_heads: int | None = None
    head_dim: int | None = None
    scale: float | None = None
    head_tables: tuple[str, ...] = ()
    _mark: Tensor

    def __init__(self) -> None:
        super().__init__()
        # An empty buffer in no state dict: it goes where the module goes, so that a bias without a learned table knows
        # its device.
        self.register_buffer("_mark", torch.empty(0), persistent=False)

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        super().__init_subclass__()
        if name is not None:
            cls.name = name
            SCHEMES[name] = cls

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return self._mark.device

    @abstractmethod
    def terms(self, positions: Positions) -> tuple[Term, ...]:
        """What the scheme adds to attention over these positions."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Give the learned tables their first values (again, after a meta-device construction)."""

    def extra_repr(self) -> str:
        """The configuration, by the constructor's names, and the declared scale."""
        shown = [*inspect.signature(type(self)).parameters, "scale"]
        values = {name: getattr(self, name, None) for name in shown if name in vars(self)}
        return ", ".join(f"{name}={_shown(value)}" for name, value in values.items())

    def bias(
        self, query_len: int, key_len: int | None = None, query_start: int | Tensor | None = None
    ) -> Float[Tensor, "*b H Tq Tk"]:
        """The dense picture `[H, Tq, Tk]` of a scheme that adds a number for each head and pair of positions.

        Args:
            query_len, key_len, query_start: as in `Positions.arange`; without a start, the last query stands at the
                last key. A start of shape `[B]` gives `[B, H, Tq, Tk]`.

        Returns:
            float32 (float64 where the table is), unscaled, without any mask, on the device of the module.

        Cost: `H Tq Tk` numbers. It is a picture to look at: `relpos.attention` does not need it.
        Raises: ValueError for a scheme that depends on content, rotates, or acts on the input.
        """
        positions = Positions.arange(query_len, key_len, query_start).to(self.device)
        terms = self.terms(positions)
        biases = [term for term in terms if isinstance(term, (DistanceBias, PairBias))]
        if not biases or len(biases) < len(terms):
            raise errors.value(
                f"{type(self).__name__}.bias",
                "a scheme whose effect is not one number for each head and pair of positions",
                "shaw_bias, t5, alibi, fire and the like",
                "call relpos.attention_weights to see what this scheme does to real queries and keys.",
            )
        tables = [table.dtype for table in self.parameters()]
        dtype = functools.reduce(torch.promote_types, tables, torch.float32)
        dense = sum(
            term.values(positions.distance(), dtype)
            if isinstance(term, DistanceBias)
            else term.between(positions.query, positions.key, self.num_heads or 1, dtype)
            for term in biases
        )
        assert isinstance(dense, Tensor)
        return dense if dense.dim() == 3 else dense.transpose(0, 1)

    def heads(self, start: int, stop: int) -> Scheme:
        """The scheme of heads `start` to `stop - 1` of these, for one rank of a tensor-parallel group.

        A new scheme with its own copy of those rows; slopes and tables are those of the global heads.
        """
        call = f"{type(self).__name__}.heads"
        errors.whole(call, start=start, stop=stop)
        if self.num_heads is None:
            return copy.deepcopy(self)
        if not 0 <= start < stop <= self.num_heads:
            raise errors.value(
                call, f"start={start}, stop={stop}", f"0 <= start < stop <= {self.num_heads}", "slice the global heads."
            )
        part = copy.deepcopy(self)
        part.num_heads = stop - start
        for name in self.head_tables:
            table = getattr(part, name)
            rows = table.detach()[start:stop].clone()
            setattr(part, name, nn.Parameter(rows, table.requires_grad) if isinstance(table, nn.Parameter) else rows)
        return part


def _shown(value: object) -> str:
    """A constructor argument in a repr: a few numbers of a tensor, anything else as it is."""
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = [f"{number:.4g}" for number in value.tolist()]
    return f"[{', '.join(numbers[:8])}{', ...' if len(numbers) > 8 else ''}]"
