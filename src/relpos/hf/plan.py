"""Which modules of a model can be taken over, and why others cannot."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from torch import nn

from relpos.hf.families import family_of
from relpos.hf.packing import PackedStack, PackedTextStack
from relpos.hf.patched import MASKS, PATCHES, Patched

#: Where a bound `forward` may stand in an instance: the second is where accelerate puts the one that it wraps.
FORWARDS = ("forward", "_old_forward")


@dataclass(frozen=True)
class Plan:
    """What `patch` would do with a model.

    Attributes:
        replacements: module -> the class that takes its place.
        reasons: module that a family knows -> why it is left alone.
        stacks: modules that hand relpos's masks, or none of pairs, to the attention in them.
    """

    replacements: dict[nn.Module, type[Patched]] = field(default_factory=dict)
    reasons: dict[nn.Module, str] = field(default_factory=dict)
    stacks: list[nn.Module] = field(default_factory=list)


def plan(model: nn.Module) -> Plan:
    """All of a stack or nothing: attention that was left alone cannot read the masks of attention that was not."""
    found = Plan()
    for module in model.modules():
        replacement = None if family_of(module) is None else PATCHES.get(type(module))
        if replacement is None:
            continue
        reason = replacement.why_not(module) or _foreign_forward(module)
        if reason is None:
            found.replacements[module] = replacement
        else:
            found.reasons[module] = reason
    for stack in model.modules():
        if not is_stack(stack, found.replacements.get(stack)):
            continue
        alone = [module for module in _attention(stack) if not _is_taken(module, found)]
        if not alone:
            found.stacks.append(stack)
            continue
        for module in stack.modules():
            if found.replacements.pop(module, None) is not None:
                found.reasons[module] = f"{type(alone[0]).__name__} beside it is left alone"
    return found


def is_stack(module: nn.Module, replacement: type[Patched] | None = None) -> bool:
    """Whether it hands relpos's masks, or none of pairs, to the attention in it, or would after its replacement."""
    kind = replacement or type(module)
    return not MASKS.isdisjoint({kind, getattr(kind, "replaces", kind)}) or issubclass(
        kind, (PackedStack, PackedTextStack)
    )


def rebind(module: nn.Module, before: type, after: type) -> None:
    """Let a `forward` that was bound to the instance, as accelerate does, be that of the new class."""
    for name in FORWARDS:
        bound = vars(module).get(name)
        if _is_bound(bound, module, before):
            vars(module)[name] = MethodType(after.forward, module)  # type: ignore[attr-defined]


def _foreign_forward(module: nn.Module) -> str | None:
    if "forward" not in vars(module) or any(_is_bound(vars(module).get(n), module, type(module)) for n in FORWARDS):
        return None
    return "its forward was replaced"


def _is_bound(value: Any, module: nn.Module, kind: Any) -> bool:
    return isinstance(value, MethodType) and value.__self__ is module and value.__func__ is kind.forward


def _attention(stack: nn.Module) -> list[nn.Module]:
    """Those that a family knows, and what somebody derived from them."""
    known = tuple(taken for taken in PATCHES if "Attention" in taken.__name__)
    return [module for module in stack.modules() if isinstance(module, known)]


def _is_taken(module: nn.Module, found: Plan) -> bool:
    return isinstance(module, Patched) or module in found.replacements
