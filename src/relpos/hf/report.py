"""What `patch` changed in a model, what it left alone, and why."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from relpos import errors
from relpos.hf.families import family_of
from relpos.hf.patched import PATCHES, Patched
from relpos.hf.plan import plan


@dataclass(frozen=True)
class Row:
    """Modules of one class with one fate.

    Attributes:
        kind: name of their class in transformers.
        names: their paths in the model.
        family: the file of `relpos.hf` that computes them, None where they are left alone.
        reason: why they are left alone, None where they are not.
    """

    kind: str
    names: tuple[str, ...]
    family: str | None
    reason: str | None


@dataclass(frozen=True)
class Summary:
    """Rows for the attention modules of a model, and for patched modules around them; printed, one line each."""

    rows: tuple[Row, ...]

    @property
    def patched(self) -> int:
        """How many modules compute with relpos."""
        return sum(len(row.names) for row in self.rows if row.family is not None)

    def __str__(self) -> str:
        if not self.rows:
            return "no attention module of transformers"
        counts = [f"{len(row.names)} x {row.kind}" for row in self.rows]
        width = max(map(len, counts))
        fates = [f"patched: {row.family}" if row.reason is None else f"left alone: {row.reason}" for row in self.rows]
        return "\n".join(f"{count:<{width}}  {fate}" for count, fate in zip(counts, fates, strict=True))


def summary(model: nn.Module) -> Summary:
    """Which modules of `model` compute with relpos, which attention modules do not, and why.

    Raises: TypeError for anything but a module.
    """
    errors.module("relpos.hf.summary", model)
    reasons = plan(model).reasons
    rows: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name, module in model.named_modules():
        key: tuple[str, str | None, str | None]
        if isinstance(module, Patched):
            key = (module.replaces.__name__, type(module).__module__.rpartition(".")[2], None)
        elif _is_attention(module) and not any(
            _is_attention(child) for child in module.modules() if child is not module
        ):
            key = (type(module).__name__, None, reasons.get(module) or _reason(module))
        else:
            continue
        rows.setdefault(key, []).append(name)
    return Summary(tuple(Row(kind, tuple(names), family, why) for (kind, family, why), names in rows.items()))


def _is_attention(module: nn.Module) -> bool:
    return "Attention" in type(module).__name__ and type(module).__module__.startswith(("transformers.", "relpos.hf."))


def _reason(module: nn.Module) -> str:
    if family_of(module) is None or type(module) not in PATCHES:
        return f"relpos.hf has nothing for {type(module).__name__}"
    return "not patched yet"
