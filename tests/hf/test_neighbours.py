"""A patched model among other things that change models: hooks, shared configurations, parts, refusals, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers as hf
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from test_patched_models import eager, logits, near
from torch import nn
from zoo import TINY, Tiny, deberta_v2, inputs

import relpos.hf

EVERY = pytest.mark.parametrize(
    "name", ["t5", "umt5", "longt5", "deberta v3", "deberta v1", "mpnet", "bloom", "mpt", "falcon"]
)
MASKED = pytest.mark.parametrize("name", ["t5 encoder", "mpnet", "bloom", "mpt", "falcon"])


def batches(tiny: Tiny) -> list[dict[str, Any]]:
    """One text, a padded batch, and one of as many texts as tokens."""
    return [inputs(tiny, 1, 9), inputs(tiny, 2, 9, "right"), inputs(tiny, 9, 9, "right")]


def same(model: Any, tiny: Tiny, want: list[torch.Tensor]) -> None:
    for given, expected in zip(batches(tiny), want, strict=True):
        near(logits(model, tiny, given), expected, 1e-5)


@EVERY
@torch.no_grad()
def test_a_model_with_accelerates_hooks(name: str) -> None:
    """They stand in the instance and call the method of the class that was; of the new class after it."""
    tiny = TINY[name]
    model = eager(tiny.model())
    want = [logits(model, tiny, given) for given in batches(tiny)]
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    relpos.hf.patch(model)
    assert relpos.hf.summary(model).patched == tiny.patched
    same(model, tiny, want)
    patched = [module for module in model.modules() if hasattr(module, "relpos_options")]
    assert all(vars(module)["_old_forward"].__func__ is type(module).forward for module in patched)
    same(relpos.hf.restore(model), tiny, want)
    remove_hook_from_module(model, recurse=True)
    same(model, tiny, want)


@EVERY
@torch.no_grad()
def test_hooks_that_come_and_go_after_it(name: str) -> None:
    tiny = TINY[name]
    model = eager(tiny.model())
    want = [logits(model, tiny, given) for given in batches(tiny)]
    relpos.hf.patch(model)
    for module in model.modules():
        add_hook_to_module(module, ModelHook())
    same(model, tiny, want)
    remove_hook_from_module(model, recurse=True)
    same(model, tiny, want)
    same(relpos.hf.restore(model), tiny, want)


@torch.no_grad()
def test_layers_on_disk(tmp_path: Path) -> None:
    """As `from_pretrained` with a device map places them."""
    tiny = TINY["bloom"]
    model = eager(tiny.model())
    want = [logits(model, tiny, given) for given in batches(tiny)]
    model.save_pretrained(tmp_path)
    places = {"transformer.word_embeddings": "cpu", "transformer.word_embeddings_layernorm": "cpu", "lm_head": "cpu"}
    places |= {"transformer.h.0": "cpu", "transformer.h.1": "disk", "transformer.ln_f": "cpu"}
    offloaded = type(model).from_pretrained(tmp_path, device_map=places, offload_folder=str(tmp_path / "off")).eval()
    relpos.hf.patch(offloaded)
    assert relpos.hf.summary(offloaded).patched == tiny.patched
    same(offloaded, tiny, want)


@EVERY
@torch.no_grad()
def test_a_forward_of_somebody_elses_leaves_the_stack_alone(name: str) -> None:
    """Attention that would not be ours cannot read our masks; nor can we see what it does."""
    tiny = TINY[name]
    model = eager(tiny.model())
    want = [logits(model, tiny, given) for given in batches(tiny)]
    names = [
        name for row in relpos.hf.summary(relpos.hf.patch(model)).rows if "Attention" in row.kind for name in row.names
    ]
    attention = relpos.hf.restore(model).get_submodule(names[0])
    inner = attention.forward
    attention.forward = lambda *args, **options: inner(*args, **options)
    said = str(relpos.hf.summary(relpos.hf.patch(model)))
    assert "left alone: its forward was replaced" in said
    assert relpos.hf.summary(model).patched < tiny.patched
    same(model, tiny, want)


@MASKED
@torch.no_grad()
def test_models_that_share_a_configuration(name: str) -> None:
    """Each is patched and restored without the other, and what is written to the configuration reaches both."""
    tiny = TINY[name]
    first, second = eager(tiny.model()), eager(tiny.model())
    for one, other in zip(first.modules(), second.modules(), strict=True):
        if "config" in vars(other):
            other.config = one.config
    want = [[logits(model, tiny, given) for given in batches(tiny)] for model in (first, second)]
    implementation = second.config._attn_implementation
    relpos.hf.patch(first)
    same(first, tiny, want[0])
    same(second, tiny, want[1])
    assert second.config._attn_implementation == implementation
    relpos.hf.patch(second)
    same(relpos.hf.restore(second), tiny, want[1])
    same(first, tiny, want[0])
    first.config.output_hidden_states = True
    assert second.config.output_hidden_states
    assert all(
        module.config.output_hidden_states
        for module in first.modules()
        if module.__dict__.get("config") is first.config
    )
    same(relpos.hf.restore(first), tiny, want[0])


@EVERY
@torch.no_grad()
def test_a_part_is_not_restored_alone(name: str) -> None:
    tiny = TINY[name]
    model = relpos.hf.patch(eager(tiny.model()))
    want = [logits(model, tiny, given) for given in batches(tiny)]
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    with pytest.raises(
        ValueError, match=r"relpos.hf.restore: got a part of a patched model.*restore the model that was"
    ):
        relpos.hf.restore(layers)
    same(model, tiny, want)
    assert relpos.hf.summary(model).patched == tiny.patched


@pytest.mark.parametrize("option", [{"is_causal": False}, {"output_attentions": True}])
@torch.no_grad()
def test_a_refused_model_is_as_it_was(option: dict[str, bool]) -> None:
    tiny = TINY["bloom"]
    model = eager(tiny.model())
    for key, value in option.items():
        setattr(model.config, key, value)
    want = [logits(model, tiny, given) for given in batches(tiny)]
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=next(iter(option))):
        relpos.hf.patch(model)
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(logits(model, tiny, g), w) for g, w in zip(batches(tiny), want, strict=True))


def projections(model: Any) -> list[nn.Linear]:
    return [module for name, module in model.named_modules() if name.endswith("key_proj")]


@torch.no_grad()
def test_projections_that_somebody_else_computes_are_not_kept() -> None:
    """A `forward` in the instance, as some adapters set it, and hooks on all modules."""
    tiny, factor = TINY["deberta v3"], [0.0]
    model, given = relpos.hf.patch(eager(tiny.model())), inputs(tiny, 2, 9, "right")
    plain = logits(model, tiny, given)
    for module in projections(model):
        module.forward = lambda x, inner=module.forward: inner(x) + factor[0] * x
    near(logits(model, tiny, given), plain, 1e-6)
    factor[0] = 1.0
    ours = logits(model, tiny, given)
    assert (ours - plain).abs().max() > 0.01
    near(ours, logits(relpos.hf.restore(model), tiny, given), 1e-5)
    for module in projections(model):
        del module.forward
    relpos.hf.patch(model)
    near(logits(model, tiny, given), plain, 1e-6)
    known = {id(module) for module in projections(model)}
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, given, output: output + 1.0 if id(module) in known else None
    )
    try:
        ours = logits(model, tiny, given)
        near(ours, logits(relpos.hf.restore(model), tiny, given), 1e-5)
    finally:
        hook.remove()
    assert (ours - plain).abs().max() > 0.01


class Wrapped(torch.Tensor):
    """A weight of another kind, as quantized ones are: its numbers are not where a tensor's are."""

    def data_ptr(self) -> int:
        raise RuntimeError("invalid python storage")


@torch.no_grad()
def test_weights_of_another_kind_are_not_kept() -> None:
    tiny = TINY["deberta v3"]
    model, given = eager(tiny.model()), inputs(tiny, 2, 9)
    want = logits(model, tiny, given)
    for module in projections(model):
        module.weight = nn.Parameter(module.weight.data.as_subclass(Wrapped), requires_grad=False)
    near(logits(relpos.hf.patch(model), tiny, given), want, 1e-5)


@pytest.mark.parametrize("name", ["t5 encoder", "deberta v3", "mpnet", "bloom"])
@torch.no_grad()
def test_a_trace_is_refused(name: str) -> None:
    """It would keep the padding of its example."""
    model = relpos.hf.patch(eager(TINY[name].model()))
    model.config.return_dict = False
    with pytest.raises(TypeError, match=r"a call that is traced.*relpos.hf.restore\(model\) before tracing"):
        torch.jit.trace(model, torch.full((1, 5), 7), check_trace=False)


@torch.no_grad()
def test_debertas_layers_need_their_encoder() -> None:
    model = eager(deberta_v2()().eval())
    relpos.hf.patch(model.deberta.encoder.layer)
    with pytest.raises(ValueError, match="patch the encoder together with its layers"):
        model(torch.full((1, 5), 7))


@pytest.mark.parametrize("name", ["deberta v1", "deberta v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@torch.no_grad()
def test_pairs_of_deberta_in_any_dtype(name: str, dtype: torch.dtype) -> None:
    """0 hides, all else shows, with and without an axis for the heads."""
    model = eager(TINY[name].model()).base_model.encoder
    x, pairs = torch.randn(2, 9, 32), (torch.rand(2, 9, 9) > 0.3) | torch.eye(9).bool()
    masks = [pairs.to(dtype), pairs[:, None].to(dtype)]
    want = [model(x, mask).last_hidden_state for mask in masks[:1]] * 2
    relpos.hf.patch(model)
    for mask, expected in zip(masks, want, strict=True):
        near(model(x, mask).last_hidden_state, expected, 1e-5)


def test_no_configuration_is_left_behind() -> None:
    """A view is the same kind of thing by name, and a patched model saves the configuration that it was given."""
    model = relpos.hf.patch(eager(TINY["bloom"].model()))
    assert isinstance(model.config, hf.BloomConfig)
    assert type(model.config).__name__ == "BloomConfig"
    assert model.config.to_dict() == relpos.hf.restore(model).config.to_dict()
    assert type(model.config) is hf.BloomConfig
