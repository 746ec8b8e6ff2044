"""Changing how the attention of a model computes, in place, and back."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from relpos import backends, errors
from relpos.hf import kept
from relpos.hf.families import family_of
from relpos.hf.masks import IMPLEMENTATION
from relpos.hf.patched import MASKS, PATCHES, Options, Patched

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
        `model`, changed: classes of modules, and `_attn_implementation` of the configurations that make their masks.
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
    for module in model.modules():
        if isinstance(module, Patched):
            module.relpos_options = Options(backend, precision)
        elif family_of(module) is not None:
            replacement = PATCHES.get(type(module))
            if replacement is not None and replacement.why_not(module) is None:
                module.__class__ = replacement  # type: ignore[assignment]
                module.relpos_options = Options(backend, precision)  # type: ignore[assignment]
    for module in model.modules():
        if type(module) in MASKS and any(isinstance(child, Patched) for child in module.modules()):
            _take_masks(module)
    return model


def restore(model: Model) -> Model:
    """Undo `patch`: every module computes as transformers wrote it.

    Raises: TypeError for anything but a module. A model that was not patched stays as it is.
    """
    errors.module("relpos.hf.restore", model)
    for module in model.modules():
        if "relpos_implementation" in vars(module):
            _config(module)._attn_implementation = vars(module).pop("relpos_implementation")
        if isinstance(module, Patched):
            module.__class__ = module.replaces  # type: ignore[assignment]
            del module.relpos_options
    kept.forget(model)
    return model


def _config(module: nn.Module) -> Any:
    """The configuration from which `module` makes its masks."""
    return module.config


def _take_masks(module: nn.Module) -> None:
    """From here on the masks of `module` are padding masks, not matrices of pairs."""
    config = _config(module)
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
            f"{type(module).__name__} with is_causal=False in its configuration",
            "a decoder that is causal",
            "leave such a model to transformers.",
        )
    if config._attn_implementation != IMPLEMENTATION:  # two modules may share a configuration: one of them remembers
        module.relpos_implementation = config._attn_implementation
        config._attn_implementation = IMPLEMENTATION
