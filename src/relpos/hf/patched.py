"""What a family of models declares: modules that compute in another way, and modules that make masks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

#: Class of transformers -> the class that takes its place, filled by the families as they are imported.
PATCHES: dict[type[nn.Module], type[Patched]] = {}
#: Classes of transformers that make the mask of the attention below them, from `config._attn_implementation`.
MASKS: set[type[nn.Module]] = set()


def hooks(module: nn.Module) -> list[Any]:
    """What looks at the inputs and outputs of a module, be it at those of all modules."""
    found = (module._forward_hooks, module._forward_pre_hooks, _global_forward_hooks, _global_forward_pre_hooks)
    return [hook for registered in found for hook in registered.values()]


@dataclass(frozen=True)
class Options:
    """How a patched module computes: the arguments of `patch`, and whether a stack around it makes relpos's masks."""

    backend: str = "auto"
    precision: str = "model"
    is_masked: bool = False


class Patched:
    """A module of transformers whose class was changed: the same object, weights and children, another computation.

    A family writes `class T5Attention(Patched, modeling_t5.T5Attention)` and overrides methods; the second base is the
    class whose modules it takes over. Classes, not bound functions: a copied or pickled module keeps its own weights.
    """

    replaces: ClassVar[type[nn.Module]]
    relpos_options: Options

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        taken = cls.__bases__[-1]
        if issubclass(taken, nn.Module):
            cls.replaces = taken
            PATCHES[taken] = cls
            collected = getattr(taken, "_can_record_outputs", None)
            if collected is not None:  # transformers look up by name what a class can collect
                dict.__setitem__(_CAN_RECORD_REGISTRY, str(cls), collected)

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """Why a module of the class that this one replaces is left alone; None where it is taken over."""
        return None
