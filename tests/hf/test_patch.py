"""`patch`, `restore` and `summary` themselves: what they refuse, what they leave alone, where they find attention."""

from __future__ import annotations

import peft
import pytest
import torch
import transformers as hf
from torch import nn
from transformers.models.longt5 import modeling_longt5
from zoo import TINY, inputs, t5

import relpos.hf
from relpos import functional


def tiny_t5(**options: object) -> hf.T5ForConditionalGeneration:
    return t5(hf.T5Config, hf.T5ForConditionalGeneration, **options)().eval()


def test_what_cannot_be_meant_is_refused() -> None:
    model = tiny_t5()
    for call in (relpos.hf.patch, relpos.hf.restore, relpos.hf.summary):
        with pytest.raises(TypeError, match=r"model of T5Config.*a torch.nn.Module"):
            call(model.config)
    with pytest.raises(ValueError, match="did you mean 'reference'"):
        relpos.hf.patch(model, backend="referense")
    with pytest.raises(ValueError, match="did you mean 'exact'"):
        relpos.hf.patch(model, precision="exakt")
    assert relpos.hf.summary(model).patched == 0
    model.set_attn_implementation("eager")
    model.encoder.config.output_attentions = True
    with pytest.raises(ValueError, match="output_attentions=True"):
        relpos.hf.patch(model)


def test_a_backend_by_name_runs_or_raises() -> None:
    given = inputs(TINY["deberta v3"], 1, 7)
    model = relpos.hf.patch(TINY["deberta v3"].model(), backend="sdpa")
    with pytest.raises(relpos.BackendRefused, match="QueryDistance"):
        model(**given)
    relpos.hf.patch(model, backend="reference")(**given)


def test_summary_says_what_was_replaced_and_what_not() -> None:
    model = relpos.hf.patch(tiny_t5())
    assert str(relpos.hf.summary(model)) == "1 x T5Stack      patched: t5\n6 x T5Attention  patched: t5"
    row = relpos.hf.summary(model).rows[1]
    assert row.names[:2] == ("encoder.block.0.layer.0.SelfAttention", "encoder.block.1.layer.0.SelfAttention")
    relpos.hf.restore(model)
    assert str(relpos.hf.summary(model)) == "6 x T5Attention  left alone: not patched yet"
    config = hf.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    bert = hf.BertModel(config)
    kinds = [type(module) for module in bert.modules()]
    said = str(relpos.hf.summary(relpos.hf.patch(bert)))
    assert said == "1 x BertSelfAttention  left alone: its positions are absolute"
    assert [type(module) for module in bert.modules()] == kinds
    assert bert.config._attn_implementation != "relpos"
    assert str(relpos.hf.summary(nn.Linear(2, 2))) == "no attention module of transformers"


def test_a_configuration_that_two_modules_share_comes_back() -> None:
    model = tiny_t5()
    model.decoder.config = model.encoder.config
    before = model.encoder.config._attn_implementation
    relpos.hf.restore(relpos.hf.patch(model))
    assert model.encoder.config._attn_implementation == before != "relpos"


def test_a_class_of_ones_own_is_left_alone() -> None:
    """Somebody else's subclass computes what it likes; taking it over would undo that."""

    class Mine(type(tiny_t5().encoder.block[0].layer[0].SelfAttention)):
        pass

    model = tiny_t5()
    model.encoder.block[0].layer[0].SelfAttention.__class__ = Mine
    given = inputs(TINY["t5"], 2, 9, "right")
    want = model(**given).logits
    relpos.hf.patch(model)
    assert type(model.encoder.block[0].layer[0].SelfAttention) is Mine
    assert relpos.hf.summary(model).patched == 4
    assert "1 x T5Attention           left alone: Mine beside it is left alone" in str(relpos.hf.summary(model))
    torch.testing.assert_close(model(**given).logits, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["t5 encoder", "deberta v3"])
def test_lora_on_the_projections(name: str) -> None:
    """Adapters patched in either order train alike, and merge into the weights that they were made for."""
    tiny, targets = TINY[name], {"t5 encoder": ["q", "v"], "deberta v3": ["query_proj", "value_proj"]}[name]
    given = inputs(tiny, 2, 9, "right")
    outputs, grads = [], []
    for order in ("none", "patch first", "adapters first"):
        torch.manual_seed(1)
        model = tiny.model()
        if order == "patch first":
            relpos.hf.patch(model)
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, r=2, init_lora_weights=False))
        if order == "adapters first":
            relpos.hf.patch(adapted)
        assert relpos.hf.summary(adapted).patched == (0 if order == "none" else tiny.patched)
        output = adapted.eval()(**given).logits[given["attention_mask"].bool()]
        output.square().mean().backward()
        outputs.append(output.detach())
        grads.append({n: p.grad for n, p in adapted.named_parameters() if p.grad is not None})
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(**given).logits[given["attention_mask"].bool()], output, atol=1e-5, rtol=1e-5)
    for output, gradient in zip(outputs[1:], grads[1:], strict=True):
        torch.testing.assert_close(output, outputs[0], atol=1e-5, rtol=0)
        assert gradient.keys() == grads[0].keys()
        for key, want in grads[0].items():
            torch.testing.assert_close(gradient[key], want, atol=1e-4 * float(want.abs().max()) + 1e-7, rtol=0)


@pytest.mark.parametrize("name", ["t5 encoder", "longt5 encoder", "deberta v3", "deberta v3, embedding of distances"])
@torch.no_grad()
def test_dropout_in_training(name: str) -> None:
    """The mean over many draws is transformers' mean, and so is its spread; none in evaluation (K8)."""
    model = TINY[name.split(",")[0]].model()
    kinds = ("T5Attention", "LongT5LocalAttention", "DisentangledSelfAttention")
    attention = next(m for m in model.modules() if type(m).__name__ in kinds)
    x, rate = torch.randn(1, 12, 32), 0.4
    if name == "t5 encoder":
        attention.dropout, call = rate, lambda: attention(x)[0]
    elif name == "longt5 encoder":
        mask = modeling_longt5._get_local_attention_mask(torch.ones(1, 12), attention.block_len, x.device)
        attention.dropout, call = rate, lambda: attention(x, mask)[0]
    else:
        (attention.pos_dropout if "distances" in name else attention.dropout).p = rate
        embeddings = model.deberta.encoder.get_rel_embedding()
        call = lambda: attention(x, torch.ones(1, 12), rel_embeddings=embeddings)[0]  # noqa: E731
    draws = {}
    for who in ("transformers", "relpos"):
        if who == "relpos":
            relpos.hf.patch(model)
        attention.eval()
        torch.testing.assert_close(call(), call(), rtol=0, atol=0)
        still = call()
        attention.train()
        torch.manual_seed(3)
        draws[who] = torch.stack([call() for _ in range(400)])
        assert not torch.equal(draws[who][0], still)
    ours, theirs = draws["relpos"], draws["transformers"]
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() <= 5 * error).all()
    spread = ours.std(0).mean() / theirs.std(0).mean()
    assert 0.95 < spread < 1.05


@torch.no_grad()
def test_masks_of_pairs_from_the_caller() -> None:
    """A 4-D mask shows or hides; one with other numbers would be a bias, which nobody here would add."""
    tiny = TINY["t5 encoder"]
    model = tiny.model()
    model.set_attn_implementation("eager")
    given = inputs(tiny, 2, 9)
    keep = torch.rand(2, 1, 9, 9) > 0.3
    keep |= torch.eye(9, dtype=torch.bool)
    numbers = torch.zeros(2, 1, 9, 9).masked_fill(~keep, torch.finfo(torch.float32).min)
    want = model(**given, attention_mask=numbers).logits
    relpos.hf.patch(model)
    for mask in (keep, numbers, keep.long()):
        torch.testing.assert_close(model(**given, attention_mask=mask).logits, want, atol=1e-5, rtol=0)
    with pytest.raises(TypeError, match="other numbers than 0"):
        model(**given, attention_mask=numbers - 0.5)


@torch.no_grad()
def test_a_mask_of_pairs_is_all_that_a_decoder_hides_by() -> None:
    """Also where it shows tokens ahead: a prefix that sees itself, say."""
    model, given = TINY["t5"].model(), inputs(TINY["t5"], 1, 16)
    model.set_attn_implementation("eager")
    keep = torch.ones(8, 8).tril().bool()
    keep[:4, :4] = True
    given["decoder_attention_mask"] = torch.zeros(1, 1, 8, 8).masked_fill(~keep, torch.finfo(torch.float32).min)
    want = model(**given).logits
    torch.testing.assert_close(relpos.hf.patch(model)(**given).logits, want, atol=1e-5, rtol=0)


@torch.no_grad()
def test_autocast_as_transformers() -> None:
    for name in ("t5 encoder", "deberta v3"):
        tiny = TINY[name]
        model, given = tiny.model(), inputs(tiny, 2, 30, "right")
        shown = given["attention_mask"].bool()
        exact = model(**given).logits[shown]
        with torch.autocast("cpu", torch.bfloat16):
            theirs = model(**given).logits[shown]
            ours = relpos.hf.patch(model)(**given).logits[shown]
        assert ours.dtype == theirs.dtype
        assert (ours - exact).abs().mean() <= 2 * (theirs - exact).abs().mean()


def test_the_rows_of_the_table_are_those_of_transformers() -> None:
    """Bidirectional and causal, over all distances: -16 reads 10, +16 reads 26."""
    layer = hf.T5Model(hf.T5Config(num_layers=1, d_model=8, num_heads=1)).encoder.block[0].layer[0].SelfAttention
    distance = torch.arange(-300, 301)
    for bidirectional in (True, False):
        want = layer._relative_position_bucket(distance, bidirectional)
        have = functional.t5_bucket(distance, bidirectional=bidirectional, num_buckets=32, max_distance=128)
        assert torch.equal(have, want)
