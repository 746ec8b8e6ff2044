"""`patch`, `restore` and `summary` themselves: what they refuse, what they leave alone, where they find attention."""

from __future__ import annotations

import copy
import math

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
    assert str(relpos.hf.summary(model)) == "6 x T5Attention  patched: t5"
    row = relpos.hf.summary(model).rows[0]
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
    relpos.hf.patch(model)
    assert type(model.encoder.block[0].layer[0].SelfAttention) is Mine
    assert relpos.hf.summary(model).patched == 5


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


@torch.no_grad()
def test_b8_cross_attention_has_no_bias() -> None:
    model, given = relpos.hf.patch(TINY["t5"].model()), inputs(TINY["t5"], 1, 5)
    layer = model.decoder.block[0].layer[1].EncDecAttention
    x, context = torch.randn(1, 3, 32), torch.randn(1, 5, 32)
    want = layer(x, key_value_states=context)[0]
    before = model(**given).logits
    model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.mul_(100)
    assert torch.equal(layer(x, key_value_states=context)[0], want)
    assert not torch.allclose(model(**given).logits, before)


def test_b9_every_layer_adds_the_table_of_the_first() -> None:
    model = relpos.hf.patch(t5(hf.T5Config, hf.T5EncoderModel, num_hidden_layers=3)().eval())
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    nn.init.normal_(table)
    ids = inputs(TINY["t5"], 1, 9)["input_ids"]
    seen = []
    for block in model.encoder.block:
        attend = block.layer[0].SelfAttention
        attend.register_forward_hook(lambda module, args, kwargs, output: seen.append(output[1]), with_kwargs=True)
    model(ids)
    assert len(seen) == len(model.encoder.block) >= 2
    assert all(one is seen[0] for one in seen)  # made once, shared
    probabilities = model(ids, output_attentions=True).attentions
    with torch.no_grad():
        table.zero_()
    flat = model(ids, output_attentions=True).attentions
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(probabilities, flat, strict=True))


@torch.no_grad()
def test_b11_t5_does_not_scale() -> None:
    """Head width 16, product 8: logit 8, not 2; two keys, one of them zero."""
    model = t5(hf.T5Config, hf.T5EncoderModel)()
    layer = relpos.hf.patch(model).encoder.block[0].layer[0].SelfAttention
    for project in (layer.q, layer.k, layer.v, layer.o):
        nn.init.eye_(project.weight)
    layer.relative_attention_bias.weight.zero_()
    x = torch.zeros(1, 2, 32)
    x[0, 0, :8] = 1.0  # head 0 has 8 channels: q.k = 8
    value = layer(x)[0][0, 0, 0]
    torch.testing.assert_close(value, torch.tensor(1 / (1 + math.exp(-8.0))))


@torch.no_grad()
def test_g2_the_decoder_counts_from_the_cache() -> None:
    """Causal 32 / 128 and a table whose entries are their buckets: 20 cached tokens and one more."""
    config = hf.T5Config(vocab_size=9, d_model=8, d_kv=8, num_heads=1, d_ff=8, num_layers=1, is_encoder_decoder=True)
    layer = relpos.hf.patch(hf.T5ForConditionalGeneration(config)).decoder.block[0].layer[0].SelfAttention
    layer.relative_attention_bias.weight.copy_(torch.arange(32.0)[:, None])
    for project in (layer.q, layer.k):
        nn.init.zeros_(project.weight)
    for cache in (hf.DynamicCache(), hf.StaticCache(config=config.get_text_config(decoder=True), max_cache_len=32)):
        layer(torch.zeros(1, 20, 8), cache=cache)
        weights = layer(torch.zeros(1, 1, 8), cache=cache, output_attentions=True)[2][0, 0, 0]
        bias = weights[:21].log()
        torch.testing.assert_close(bias[[0, 19]] - bias[20], torch.tensor([17.0, 1.0]), atol=1e-3, rtol=0)
        assert not weights[21:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_m3_m5_a_hidden_key_stays_hidden(dtype: torch.dtype) -> None:
    """Under a bias of -40 in float16, and beside scores of -12000."""
    model = t5(hf.T5Config, hf.T5EncoderModel)().to(dtype)
    layer = relpos.hf.patch(model).encoder.block[0].layer[0].SelfAttention
    layer.relative_attention_bias.weight.fill_(-40)
    x = torch.randn(1, 3, 32, dtype=dtype)
    output, _, weights = layer(x, mask=torch.tensor([[False, True, True]]), output_attentions=True)
    assert output.isfinite().all()
    assert not weights[..., 0].any()
    layer.q.weight.mul_(1000)
    _, _, weights = layer(x, mask=torch.tensor([[False, True, True]]), output_attentions=True)
    assert weights.isfinite().all()
    assert not weights[..., 0].any()


def test_the_rows_of_the_table_are_those_of_transformers() -> None:
    """Bidirectional and causal, over all distances: -16 reads 10, +16 reads 26."""
    layer = hf.T5Model(hf.T5Config(num_layers=1, d_model=8, num_heads=1)).encoder.block[0].layer[0].SelfAttention
    distance = torch.arange(-300, 301)
    for bidirectional in (True, False):
        want = layer._relative_position_bucket(distance, bidirectional)
        have = functional.t5_bucket(distance, bidirectional=bidirectional, num_buckets=32, max_distance=128)
        assert torch.equal(have, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_c13_deberta_without_its_matrices(dtype: torch.dtype) -> None:
    """12 heads, 70 tokens of which 9 are padding, 256 buckets of 512: outputs, and gradients of the embedding."""
    config = hf.DebertaV2Config(
        hidden_size=96,
        num_attention_heads=12,
        num_hidden_layers=1,
        intermediate_size=8,
        vocab_size=9,
        relative_attention=True,
        position_buckets=256,
        pos_att_type=["c2p", "p2c"],
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    encoder = hf.DebertaV2Model(config).encoder.to(dtype)
    nn.init.normal_(encoder.rel_embeddings.weight, std=0.5)
    x, mask = torch.randn(1, 70, 96, dtype=dtype), torch.arange(70)[None] < 61

    def run(encoder: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encoder.zero_grad()
        output = encoder(x, mask).last_hidden_state[:, :61]
        (output.float() * torch.linspace(-1, 1, 96)).sum().backward()
        return output.detach().float(), encoder.rel_embeddings.weight.grad.float().clone()

    with torch.random.fork_rng():
        exact = run(copy.deepcopy(encoder).float(), x.float())
    torch.use_deterministic_algorithms(True, warn_only=True)  # transformers gathers
    theirs = run(encoder, x)
    ours = run(relpos.hf.patch(encoder), x)
    for mine, other, want, tolerance in zip(ours, theirs, exact, (1e-5, 1e-4), strict=True):
        assert mine.isfinite().all()
        if dtype is torch.float32:
            torch.testing.assert_close(mine, other, atol=tolerance * float(other.abs().max()), rtol=0)
        assert (mine - want).norm() <= 2 * (other - want).norm() + 1e-6 * want.norm()
