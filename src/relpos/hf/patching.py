"""Changing how the attention of a model computes, in place, and back."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedConfig

from relpos import backends, errors
from relpos.hf import kept
from relpos.hf.configuration import original, view
from relpos.hf.patched import MASKS, Options, Patched
from relpos.hf.plan import Plan, is_stack, plan, rebind

PRECISIONS = ("model", "exact")
Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, backend: str = "auto", precision: str = "model") -> Model:
    """Let relpos compute the attention of every supported module in `model`, in place.

    Args:
        model: any module that contains Hugging Face attention with a supported position scheme, at any depth.
        backend: as in `relpos.attention`.
        precision: of ALiBi in low precision. "model" keeps the model's own rounding, and so its logits; "exact" takes
            distances in float32.

    Returns:
        `model`, changed: classes of modules, and the configurations that make their masks, by views of them.
        Weights, names of parameters, `save_pretrained` and the configuration on disk stay as they are. A patched model
        may be patched again, with other arguments. What has no supported scheme is left alone: see `summary`.

    Numerics: as `relpos.attention`. A query that may attend to nothing gives zeros, where transformers give an average.
    Raises: TypeError for anything but a module; ValueError for an unknown backend or precision, and for a model
        whose configuration asks for all attention probabilities in every call.
    """
    errors.module("relpos.hf.patch", model)
    if backend != "auto" and backend not in backends.BACKENDS:
        raise errors.unknown_name("relpos.hf.patch", "backend", backend, ["auto", *backends.BACKENDS])
    if precision not in PRECISIONS:
        raise errors.unknown_name("relpos.hf.patch", "precision", precision, PRECISIONS)
    planned = plan(model)
    masked = [module for stack in planned.stacks for module in stack.modules()]
    makers = [stack for stack in planned.stacks if _makes_masks(stack, planned)]
    for maker in makers:
        _check_masks(maker)
    for module, replacement in planned.replacements.items():
        rebind(module, type(module), replacement)
        module.__class__ = replacement  # type: ignore[assignment]
    for module in model.modules():
        if isinstance(module, Patched):
            module.relpos_options = Options(backend, precision)
    for module in masked:
        if isinstance(module, Patched):
            module.relpos_options = Options(backend, precision, is_masked=True)
    _take_masks(model, {id(original(maker.config)) for maker in makers})
    return model


def restore(model: Model) -> Model:
    """Undo `patch`: every module computes as transformers wrote it.

    Raises: TypeError for anything but a module; ValueError for a part of what was patched, whose masks are made around
        it. A model that was not patched stays as it is.
    """
    errors.module("relpos.hf.restore", model)
    whole = {module for stack in model.modules() if is_stack(stack) for module in stack.modules()}
    for module in model.modules():
        if isinstance(module, Patched) and module.relpos_options.is_masked and module not in whole:
            raise errors.value(
                "relpos.hf.restore",
                f"a part of a patched model, {type(model).__name__}",
                "all of the stack that hands its masks to this part",
                "restore the model that was patched.",
            )
    for module in model.modules():
        if isinstance(config := vars(module).get("config"), PreTrainedConfig):
            vars(module)["config"] = original(config)
        if isinstance(module, Patched):
            rebind(module, type(module), module.replaces)
            module.__class__ = module.replaces  # type: ignore[assignment]
            del module.relpos_options
    kept.forget(model)
    return model


def _makes_masks(stack: nn.Module, planned: Plan) -> bool:
    """Whether there is attention in it that reads them."""
    if planned.replacements.get(stack, type(stack)) not in MASKS:
        return False
    return any(isinstance(module, Patched) or module in planned.replacements for module in stack.modules())


def _check_masks(maker: Any) -> None:
    """Refuse what cannot be done with padding masks, before anything has changed."""
    config = maker.config
    if config.output_attentions:
        raise errors.value(
            "relpos.hf.patch",
            "a configuration with output_attentions=True",
            "output_attentions=False",
            "pass output_attentions=True to the calls that need the probabilities.",
        )
    if vars(config).get("is_causal") is False:
        raise errors.value(
            "relpos.hf.patch",
            f"{type(maker).__name__} with is_causal=False in its configuration",
            "a decoder that is causal",
            "leave such a model to transformers.",
        )


def _take_masks(model: nn.Module, makers: set[int]) -> None:
    """From here on masks made by these configurations are padding masks: in `model`, not in others that share them."""
    views: dict[int, Any] = {}
    for module in model.modules():
        config = vars(module).get("config")
        number = id(original(config))
        if number in makers:
            vars(module)["config"] = views.setdefault(number, view(original(config)))
