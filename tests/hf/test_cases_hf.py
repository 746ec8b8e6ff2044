"""Reported faults, each with its small input, on patched models: the rows of docs/cases.md that say `tests/hf`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from test_patched_models import eager, near
from test_relative_key import LONGEST, build, checkpoint, loaded
from torch import Tensor, nn
from zoo import TINY, Tiny, deberta, deberta_v2, inputs, mpnet, mpt, t5

import relpos.hf
from relpos import Positions, attention
from relpos.hf.attend import attend
from relpos.hf.disentangled import distance_rows

DEBERTAS = pytest.mark.parametrize("build", [deberta, deberta_v2], ids=["v1", "v2"])
ALIBI = pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])


@pytest.fixture(autouse=True)
def _nondeterministic() -> None:
    """Transformers' own gathers have no deterministic backward; memory stays full of NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)


def attention_of(model: Any) -> Any:
    """The first patched attention in a model."""
    return next(
        m for m in model.modules() if isinstance(m, relpos.hf.patched.Patched) and "Attention" in type(m).__name__
    )


def bloom(heads: int, width: int) -> Any:
    """BLOOM, one layer."""
    return hf.BloomModel(hf.BloomConfig(vocab_size=9, hidden_size=heads * width, n_layer=1, n_head=heads)).eval()


def one_falcon(heads: int, width: int) -> Any:
    """Falcon with a key head for each query head, one layer."""
    config = hf.FalconConfig(
        vocab_size=9,
        hidden_size=heads * width,
        num_attention_heads=heads,
        num_hidden_layers=1,
        alibi=True,
        multi_query=False,
        parallel_attn=False,
    )
    return hf.FalconModel(config).eval()


@torch.no_grad()
def alibi_weights(kind: str, model: Any, x: Tensor, cache: Any = None, tokens: int | None = None) -> Tensor:
    """Probabilities `[H, Tq, Tk]` of the model's attention, with the bias that the model makes."""
    layer = attention_of(model)
    mask = torch.ones(1, tokens or x.shape[1], dtype=torch.long)
    if kind == "mpt":
        bias = model.build_mpt_alibi_tensor(layer.n_heads, 80)
        return layer(x, position_bias=bias, cache=cache, attention_mask=mask, output_attentions=True)[1][0]
    if kind == "falcon":
        alibi = hf.models.falcon.modeling_falcon.build_alibi_tensor(mask, layer.num_heads, x.dtype)
        return layer(x, alibi, mask, layer_past=cache, output_attentions=True)[1][0]
    alibi = model.build_alibi_tensor(mask, layer.num_heads, x.dtype)
    return layer(x, torch.zeros_like(x), alibi, mask, layer_past=cache, output_attentions=True)[1][0]


@pytest.mark.parametrize(("kind", "rounded"), [("bloom", -182.0), ("falcon", -181.0)])
@torch.no_grad()
def test_a7_both_roundings_are_there_by_name(kind: str, rounded: float) -> None:
    """Head 0 of 16, distance 257, in bfloat16; content of 176 against the far key keeps its weight in sight."""
    model = bloom(16, 4) if kind == "bloom" else one_falcon(16, 4)
    model = model.bfloat16()
    layer = attention_of(relpos.hf.patch(model))
    nn.init.zeros_(layer.query_key_value.weight)
    if layer.query_key_value.bias is None:
        layer.query_key_value.bias = nn.Parameter(torch.zeros(192, dtype=torch.bfloat16))
    scale = 1.0 if kind == "bloom" else 0.5  # Falcon scales its bias as it scales scores
    layer.query_key_value.bias.zero_()[0] = 16.0
    layer.query_key_value.weight[4, 0] = 1.0  # the first key channel of head 0 (heads hold query, key, value in turn)
    x = torch.zeros(1, 258, 64, dtype=torch.bfloat16)
    x[0, 0, 0] = 22 * scale
    odds = {}
    for precision in ("model", "exact"):
        relpos.hf.patch(model, precision=precision)
        weights = alibi_weights(kind, model, x)[0, 257]
        odds[precision] = float(weights[0].float().log() - weights[257].float().log())
    content = 16 * 22 * scale / 2
    assert odds["model"] == pytest.approx(content + rounded * scale, abs=0.02)
    assert odds["exact"] == pytest.approx(content - 257 / math.sqrt(2) * scale, abs=0.02)


@torch.no_grad()
def test_b8_cross_attention_has_no_bias() -> None:
    """Decoder cross-attention was given a relative bias: 3 queries, 5 keys, a table times 100."""
    model, given = relpos.hf.patch(TINY["t5"].model()), inputs(TINY["t5"], 1, 5)
    layer = model.decoder.block[0].layer[1].EncDecAttention
    x, context = torch.randn(1, 3, 32), torch.randn(1, 5, 32)
    want = layer(x, key_value_states=context)[0]
    before = model(**given).logits
    model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.mul_(100)
    assert torch.equal(layer(x, key_value_states=context)[0], want)
    assert not torch.allclose(model(**given).logits, before)


def test_b9_every_layer_adds_the_table_of_the_first() -> None:
    """The table of the first layer was mistaken for its own: 3 layers, of which each adds it."""
    config = hf.T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, dropout_rate=0.0)
    model = relpos.hf.patch(hf.T5EncoderModel(config).eval())
    layers = [block.layer[0].SelfAttention for block in model.encoder.block]
    weight = layers[0].relative_attention_bias.weight
    nn.init.normal_(weight)
    tables: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda _, __, output: tables.append(output[1])) for layer in layers]
    ids = inputs(TINY["t5"], 1, 9)["input_ids"]
    sharp = model(ids, output_attentions=True).attentions
    assert len(tables) == 3
    assert all(table is tables[0] for table in tables)  # made once, shared
    for hook in hooks:
        hook.remove()
    # The gradient is the sum of what each layer alone would give.
    whole = torch.autograd.grad(model(ids).last_hidden_state.sin().sum(), weight)[0]
    parts = []
    for owner in layers:

        def detach(module: Any, given: Any, options: Any, owner: Any = owner) -> Any:
            table = layers[0].bias_table()
            return given, options | {"position_bias": table if module is owner else table.detach()}

        hooks = [layer.register_forward_pre_hook(detach, with_kwargs=True) for layer in layers]
        parts.append(torch.autograd.grad(model(ids).last_hidden_state.sin().sum(), weight)[0])
        for hook in hooks:
            hook.remove()
    assert all(part.abs().max() > 1e-3 for part in parts)
    near(whole, torch.stack(parts).sum(0), 1e-5)
    with torch.no_grad():
        weight.zero_()
    flat = model(ids, output_attentions=True).attentions
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(sharp, flat, strict=True))


@torch.no_grad()
def test_b11_t5_does_not_scale_and_bert_does(tmp_path: Path) -> None:
    """A fused call's default scale: head width 16 and a product of 8 are a logit of 8 in T5, of 2 in BERT."""
    config = hf.T5Config(vocab_size=9, d_model=16, d_kv=16, d_ff=8, num_layers=1, num_heads=1)
    layer = attention_of(relpos.hf.patch(hf.T5EncoderModel(config).eval()))
    nn.init.zeros_(layer.relative_attention_bias.weight)
    bert = hf.BertModel(
        hf.BertConfig(
            vocab_size=9,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            max_position_embeddings=4,
            position_embedding_type="relative_key",
        )
    ).eval()
    bert.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"encoder.layer.0.attention.self.distance_embedding.weight": torch.zeros(7, 16)}, file)
    other = attention_of(relpos.hf.load_relative_key(bert, file))
    x = torch.zeros(1, 2, 16)
    x[0, 0, :8] = 1.0  # the first query and the first key have product 8, all else 0
    for module, names, logit in ((layer, "qk", 8.0), (other, ("query", "key"), 2.0)):
        for name in names:
            nn.init.eye_(getattr(module, name).weight)
            if getattr(module, name).bias is not None:
                nn.init.zeros_(getattr(module, name).bias)
        weights = module(x, output_attentions=True)
        weights = weights[2 if module is layer else 1][0, 0, 0]
        assert float(weights[0].log() - weights[1].log()) == pytest.approx(logit, abs=1e-5)


@torch.no_grad()
def test_c8_some_queries_give_those_rows_of_the_square() -> None:
    """Queries 3 and 4 of 5 tokens: with their place the rows of the square, without it an error and no guess."""
    layer = attention_of(relpos.hf.patch(deberta_v2()().eval()))
    x, mask, table = torch.randn(1, 5, 32), torch.ones(1, 5), torch.randn(16, 32)
    square, weights = layer(x, mask, True, rel_embeddings=table)
    same, _ = layer(x, mask, query_states=x, rel_embeddings=table)
    assert torch.equal(same, square)
    with pytest.raises(ValueError, match=r"query_states of 2 tokens with 5 keys.*as many.*query_start"):
        layer(x, mask, query_states=x[:, 3:], rel_embeddings=table)
    query, key, value = (
        p(x).view(1, 5, 4, 8).transpose(1, 2) for p in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    scale, terms = 1 / math.sqrt(8 * 3), layer._terms(table, distance_rows(layer, x, None), 5)
    some, mine = attend(
        layer,
        query[:, :, 3:],
        key,
        value,
        terms,
        mask=mask,
        scale=scale,
        query_start=3,
        needs_weights=True,
    )
    torch.testing.assert_close(some, square[:, 3:], rtol=0, atol=1e-6)
    torch.testing.assert_close(mine, weights[:, :, 3:], rtol=0, atol=1e-6)
    there = Positions.arange(2, 5, query_start=3)
    public = attention(query[:, :, 3:], key, value, terms, positions=there, scale=scale)
    torch.testing.assert_close(public.transpose(1, 2).flatten(2), square[:, 3:], rtol=0, atol=1e-6)


def test_c10_large_float16_products_stay_finite() -> None:
    """Products overflowed before they were divided: width 64, query and key of 40 everywhere, a logit of 7390.

    A vector for one token back takes it away again, by a product of another shape, up to 80 / sqrt(3 * 64).
    """
    one = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1}
    distances = {"share_att_key": False, "position_buckets": -1, "max_relative_positions": 4}
    layer = attention_of(relpos.hf.patch(deberta_v2(**one, **distances)().eval().half()))
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        layer.query_proj.bias.fill_(40)
        layer.key_proj.weight[:, 0] = 1  # all channels of a key are the first of its token,
        layer.pos_key_proj.weight[0, 0] = 1  # and only the first channel of a distance is not 0
    x, table = torch.zeros(1, 2, 64, dtype=torch.float16), torch.zeros(8, 64, dtype=torch.float16)
    x[0, 0, 0], table[4 + 1, 0] = 40, -2558
    assert (torch.full((64,), 40, dtype=torch.float16) * x[0, 0, 0]).sum().isinf()
    x.requires_grad_()
    output, weights = layer(x, torch.ones(1, 2), True, rel_embeddings=table)
    assert output.isfinite().all()
    back, itself = weights[0, 0, 1].detach().double()  # products of 102400 - 102320, and of 0
    assert float((back / itself).log()) == pytest.approx(80 / math.sqrt(3 * 64), abs=0.01)
    output.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@DEBERTAS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_c11_masked_keys_have_no_weight_in_any_dtype(build: Any, dtype: torch.dtype, autocast: bool) -> None:
    """A float32 number in the mask did not fit: 4 tokens, the last one hidden, also under autocast, also backward."""
    model = relpos.hf.patch(build()())
    model = model if autocast else model.to(dtype)
    given = {"input_ids": torch.tensor([[5, 6, 7, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 0]])}
    with torch.autocast("cpu", dtype, enabled=autocast):
        out = model(**given, output_attentions=True)
    for weights in out.attentions:
        assert (weights[..., 3] == 0).all()
        torch.testing.assert_close(weights[:, :, :3].float().sum(-1), torch.ones(1, 4, 3), rtol=0, atol=0.01)
    out.logits[:, :3].float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@DEBERTAS
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_c12_a_batch_equals_each_text_alone(build: Any, side: str) -> None:
    """A drop-in worked for one text only: 7 and 4 tokens, the shorter one padded."""
    model = relpos.hf.patch(Tiny(build(), "encoder", 3).model())
    ids = torch.randint(3, 61, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, slice(0, 3) if side == "left" else slice(4, 7)] = 0
    ids[mask == 0] = 0
    together = model(input_ids=ids, attention_mask=mask).logits
    for row in range(2):
        shown = mask[row].bool()
        near(together[row, shown], model(input_ids=ids[row : row + 1, shown]).logits[0], 1e-5)


def released(dtype: torch.dtype) -> nn.Module:
    """The encoder of DeBERTa v3 with the released heads, buckets and parts, of one narrow layer."""
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
    encoder = hf.DebertaV2Model(config).encoder
    nn.init.normal_(encoder.rel_embeddings.weight, std=0.5)
    return encoder.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_c13_deberta_without_its_matrices(dtype: torch.dtype) -> None:
    """12 heads, 70 tokens of which 9 are padding, 256 buckets of 512: outputs, and gradients of the embedding."""
    encoder = released(dtype)
    x, mask = torch.randn(1, 70, 96, dtype=dtype), torch.arange(70)[None] < 61

    def run(encoder: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        encoder.zero_grad()
        output = encoder(x, mask).last_hidden_state[:, :61]
        (output.float() * torch.linspace(-1, 1, 96)).sum().backward()
        return output.detach().float(), encoder.rel_embeddings.weight.grad.float().clone()

    with torch.random.fork_rng():
        exact = run(copy.deepcopy(encoder).float(), x.float())
    theirs = run(encoder, x)
    ours = run(relpos.hf.patch(encoder), x)
    for mine, other, want, tolerance in zip(ours, theirs, exact, (1e-5, 1e-4), strict=True):
        assert mine.isfinite().all()
        if dtype is torch.float32:
            torch.testing.assert_close(mine, other, atol=tolerance * float(other.abs().max()), rtol=0)
        assert (mine - want).norm() <= 2 * (other - want).norm() + 1e-6 * want.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shown", ["", "0", "8", "345", "02468", "012345678"], ids=lambda s: s or "nothing")
def test_c13_no_mask_gives_nan(dtype: torch.dtype, shown: str) -> None:
    """Neither forward nor backward, whatever is hidden, all of a text included."""
    encoder = relpos.hf.patch(released(dtype))
    x = torch.randn(2, 9, 96, dtype=dtype, requires_grad=True)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0] = torch.tensor([str(place) in shown for place in range(9)]).long()
    output = encoder(x, mask).last_hidden_state
    assert output.isfinite().all()
    output.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in (x, *encoder.parameters()))


@pytest.mark.parametrize(
    ("build", "first"), [(deberta, 0), (deberta_v2, 0), (mpnet, 2)], ids=["deberta v1", "deberta v2", "mpnet"]
)
@torch.no_grad()
def test_c14_absolute_positions_end_with_a_clear_error(build: Any, first: int) -> None:
    """A table of 16: what fits equals transformers, one token more says how far it goes, padding takes no place."""
    options = {} if build is mpnet else {"position_biased_input": True}
    tiny = Tiny(build(max_position_embeddings=16, **options), "encoder", 4, pad=1 if first else 0)
    model, fits = eager(tiny.model()), 16 - first
    given = inputs(tiny, 2, fits)
    want = model(**given).logits
    relpos.hf.patch(model)
    assert relpos.hf.summary(model).patched == 4
    near(model(**given).logits, want, 1e-5)
    clear = rf"Embeddings: got {{}} tokens, of which one has position {{}}\. Allowed: {first} to 15: .*to {fits} tokens"
    for tokens in (fits + 1, 20):
        with pytest.raises(ValueError, match=clear.format(tokens, tokens + first - 1)):
            model(**inputs(tiny, 2, tokens))
        with pytest.raises(ValueError, match=clear.format(tokens, tokens + first - 1)):
            model(inputs_embeds=torch.randn(1, tokens, 32))
    with pytest.raises(ValueError, match=clear.format(3, 16)):
        model(**inputs(tiny, 1, 3), position_ids=torch.tensor([[14, 15, 16]]))
    model(**inputs(tiny, 1, 3), position_ids=torch.tensor([[13, 14, 15]]))
    padded = inputs(tiny, 2, 20, "right")
    if first:  # positions are counted without padding: a batch may be longer than the table
        padded["input_ids"][0, 14:], padded["attention_mask"][0, 14:] = 1, 0
        theirs, shown = relpos.hf.restore(model)(**padded).logits, padded["attention_mask"].bool()
        near(relpos.hf.patch(model)(**padded).logits[shown], theirs[shown], 1e-5)


@DEBERTAS
@torch.no_grad()
def test_c14_without_absolute_positions_any_length_runs(build: Any) -> None:
    tiny = Tiny(build(max_position_embeddings=16, position_biased_input=False), "encoder", 3)
    model, given = eager(tiny.model()), inputs(tiny, 2, 20)
    want = model(**given).logits
    near(relpos.hf.patch(model)(**given).logits, want, 1e-5)
    assert relpos.hf.summary(model).patched == 3


@torch.no_grad()
def test_c14_relative_key_has_a_table_of_distances_instead(tmp_path: Path) -> None:
    """Old BERT adds no absolute positions: explicit ones change nothing, and 24 tokens are as many as there are."""
    _, model, _ = loaded("bert", "relative_key", tmp_path)
    ids = torch.randint(3, 61, (1, LONGEST + 1))
    want = model(input_ids=ids[:, :-1]).logits
    assert torch.equal(model(input_ids=ids[:, :-1], position_ids=torch.full((1, LONGEST), 99)).logits, want)
    with pytest.raises(ValueError, match=r"got 25 tokens\. Allowed: at most 24: a table of 47 distances"):
        model(input_ids=ids)


def decoder(name: str, kind: str, folder: Path) -> Any:
    """A causal language model with old relative_key tables."""
    config = build(name, kind, is_decoder=True, bos_token_id=None, eos_token_id=None).config
    model = {"bert": hf.BertLMHeadModel, "roberta": hf.RobertaForCausalLM, "electra": hf.ElectraForCausalLM}[name](
        config
    )
    checkpoint(model.eval(), folder)
    return relpos.hf.load_relative_key(model, folder)


def caches(config: Any) -> Iterator[Any]:
    yield hf.DynamicCache(config=config)
    yield hf.StaticCache(config=config, max_cache_len=LONGEST)


@torch.no_grad()
def test_f3_distances_count_the_cached_tokens(tmp_path: Path) -> None:
    """Distances were taken within the current chunk, always 0: 4 cached tokens and one more are -4 to 0 away.

    The query is a unit vector and row r of the table has r in that channel, so weights tell distances.
    """
    model = decoder("bert", "relative_key", tmp_path)
    layer = attention_of(model)
    for project in (layer.query, layer.key):
        nn.init.zeros_(project.weight)
        nn.init.zeros_(project.bias)
    layer.query.bias[::8] = 1.0
    layer.distance_embedding.weight.zero_()[:, 0] = torch.arange(2 * LONGEST - 1.0)
    x = torch.randn(1, 5, 32)
    for cache in caches(model.config):
        layer(x[:, :4], cache=cache)
        weights = layer(x[:, 4:], cache=cache, output_attentions=True)[1][0, :, 0, :5]
        distance = (weights[:, -1:].log() - weights.log()) * 8**0.5  # row(key - query) is query - key + 23
        torch.testing.assert_close(distance, torch.tensor([-4.0, -3, -2, -1, 0]).expand(4, 5), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("name", ["bert", "roberta", "electra"])
@torch.no_grad()
def test_f3_a_cached_step_equals_the_full_run(name: str, kind: str, tmp_path: Path) -> None:
    """The same for whole decoders: step by step, in a chunk, with either cache, and generated."""
    model = decoder(name, kind, tmp_path)
    ids = torch.randint(3, 61, (2, 12))
    whole = model(input_ids=ids).logits
    for cache in caches(model.config):
        parts = [model(input_ids=ids[:, i:j], cache=cache, use_cache=True).logits for i, j in ((0, 4), (4, 5), (5, 8))]
        parts += [model(input_ids=ids[:, i : i + 1], cache=cache, use_cache=True).logits for i in range(8, 12)]
        near(torch.cat(parts, 1), whole, 1e-5)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    how = {"max_new_tokens": 8, "do_sample": False, "disable_compile": True, "attention_mask": mask, "pad_token_id": 0}
    want = model.generate(ids, use_cache=False, **how)
    for cache in ("dynamic", "static"):
        assert torch.equal(model.generate(ids, cache_implementation=cache, **how), want)
    alone = model.generate(ids[1:, 4:], **how | {"attention_mask": mask[1:, 4:]})
    assert torch.equal(want[1:, 4:], alone)


@torch.no_grad()
def rows_read(table: Any, call: Any) -> list[float]:
    """The rows of a table of positions that a call reads for its first text."""
    seen: list[Tensor] = []
    table.weight.copy_(torch.arange(float(len(table.weight)))[:, None])
    handle = table.register_forward_hook(lambda _, __, output: seen.append(output.reshape(-1, output.shape[-1])[:, 0]))
    call()
    handle.remove()
    (rows,) = seen
    return rows.tolist()


def test_f8_models_keep_their_own_absolute_positions() -> None:
    """Rows begin behind the padding's, and padding reads that one, in MPNet, whose embeddings are patched; who has no
    relative positions (RoBERTa, OPT, BART) is left alone, offsets and all."""
    tiny = {"vocab_size": 12, "max_position_embeddings": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    mpnet = relpos.hf.patch(hf.MPNetModel(hf.MPNetConfig(**tiny, hidden_size=8)))
    roberta = relpos.hf.patch(hf.RobertaModel(hf.RobertaConfig(**tiny, hidden_size=8, pad_token_id=1)))
    assert type(mpnet.embeddings).__module__ == "relpos.hf.mpnet"
    assert relpos.hf.summary(roberta).patched == 0
    for model in (mpnet, roberta):
        for ids, rows in (([8, 9, 1], [2, 3, 1]), ([1, 8, 9], [1, 2, 3])):
            given = torch.tensor([ids])
            assert rows_read(model.embeddings.position_embeddings, lambda m=model, x=given: m(x)) == rows
    opt = relpos.hf.patch(hf.OPTModel(hf.OPTConfig(**tiny, hidden_size=8, ffn_dim=8)))
    given = {"input_ids": torch.tensor([[1, 1, 8, 9, 7]]), "attention_mask": torch.tensor([[0, 0, 1, 1, 1]])}
    assert rows_read(opt.decoder.embed_positions, lambda: opt(**given)) == [1, 1, 2, 3, 4]
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    bart = relpos.hf.patch(hf.BartModel(hf.BartConfig(vocab_size=12, max_position_embeddings=16, d_model=8, **heads)))
    assert rows_read(bart.encoder.embed_positions, lambda: bart.encoder(torch.tensor([[8, 9, 7]]))) == [2, 3, 4]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["mpnet", "roberta", "xlm-roberta", "camembert"])
@torch.no_grad()
def test_f8_a_padded_batch_equals_each_text_alone(name: str, side: str, tmp_path: Path) -> None:
    """The same for models that count positions without padding, and for their kin that lost their absolute ones."""
    pad = 1 if name == "mpnet" else 0
    model = (
        relpos.hf.patch(TINY["mpnet"].model()) if name == "mpnet" else loaded(name, "relative_key_query", tmp_path)[1]
    )
    ids = torch.randint(3, 61, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, slice(0, 4) if side == "left" else slice(5, 9)] = 0
    together = model(input_ids=ids.masked_fill(mask == 0, pad), attention_mask=mask).logits
    for row in range(2):
        shown = mask[row].bool()
        near(together[row, shown], model(input_ids=ids[row : row + 1, shown]).logits[0], 1e-5)


@ALIBI
@pytest.mark.parametrize("cache", [hf.DynamicCache, hf.StaticCache])
@torch.no_grad()
def test_g1_one_query_sees_the_bias_of_every_key(name: str, cache: Any) -> None:
    """A step's bias was built from its one query, and was off: 3 cached keys and one, slope 1/2, no content."""
    model = {
        "bloom": lambda: bloom(8, 2),
        "mpt": lambda: mpt(d_model=16, n_heads=8, n_layers=1)().transformer,
        "falcon": lambda: one_falcon(8, 2),
    }[name]()
    layer = attention_of(relpos.hf.patch(model))
    for parameter in (layer.Wqkv if name == "mpt" else layer.query_key_value).parameters():
        nn.init.zeros_(parameter)
    kept = cache(config=model.config, **({"max_cache_len": 7} if cache is hf.StaticCache else {}))
    x = torch.randn(1, 4, 16)
    alibi_weights(name, model, x[:, :3], kept)
    got = alibi_weights(name, model, x[:, 3:], kept, 4)[0, 0]
    slope = 0.5 / math.sqrt(2) if name == "falcon" else 0.5  # Falcon scales it, by a width of 2
    want = (-slope * torch.tensor([3.0, 2, 1, 0])).softmax(-1)
    if name != "falcon":
        torch.testing.assert_close(want, torch.tensor([0.1015, 0.1674, 0.2760, 0.4551]), rtol=0, atol=5e-5)
    torch.testing.assert_close(got[:4], want, rtol=0, atol=1e-5)
    assert not got[4:].any()


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


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
@torch.no_grad()
def test_k11_a_drop_in_for_the_t5_family(name: str, side: str) -> None:
    """9 and 5 tokens: encoder, decoder, one pass and steps from either cache, masks wider than keys, greedy tokens."""
    model = eager(TINY[name].model())
    ids, said = torch.randint(3, 61, (2, 9)), torch.randint(3, 61, (2, 6))
    mask, heard = torch.ones(2, 9, dtype=torch.long), torch.ones(2, 6, dtype=torch.long)
    mask[1, slice(0, 4) if side == "left" else slice(5, 9)] = 0
    heard[1, slice(0, 2) if side == "left" else slice(4, 6)] = 0
    given = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}
    texts = {"decoder_input_ids": said, "decoder_attention_mask": heard}
    how = {"max_new_tokens": 8, "do_sample": False, "disable_compile": True}

    def everything() -> dict[str, Tensor]:
        found = {"encoder": model.encoder(**given).last_hidden_state[mask.bool()]}
        found["logits"] = model(**given, **texts).logits[heard.bool()]
        # as many queries as keys, of other tokens: the keys' padding is not the queries'
        found["logits, as long"] = model(**given, decoder_input_ids=ids.flip(1)).logits
        config = model.config.get_text_config(decoder=True)
        for kind in ("dynamic", "static"):
            own, cross = (
                hf.DynamicCache() if kind == "dynamic" else hf.StaticCache(config=config, max_cache_len=size)
                for size in (11, 9)
            )
            cache = hf.EncoderDecoderCache(own, cross)
            steps = [
                model(
                    **given,
                    decoder_input_ids=said[:, start:stop],
                    decoder_attention_mask=heard[:, :stop],
                    cache=cache,
                    use_cache=True,
                ).logits
                for start, stop in ((0, 3), (3, 4), (4, 5), (5, 6))
            ]
            found[f"steps, {kind}"] = torch.cat(steps, 1)[heard.bool()]
            found[f"tokens, {kind}"] = model.generate(**given, **how, cache_implementation=kind)
        return found

    theirs = everything()
    relpos.hf.patch(model)
    for what, mine in everything().items():
        near(mine, theirs[what], 0 if mine.dtype == torch.long else 1e-5, what)
    near(theirs["steps, static"], theirs["logits"], 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_m3_mask_and_bias_never_add_up_to_infinity(dtype: torch.dtype) -> None:
    """The minimum of float16 and a bias of -40 are -inf, and a row of them NaN: the first query sees nothing, and the
    first text has no token."""
    model = t5(hf.T5Config, hf.T5EncoderModel)().eval().to(dtype)
    layer = relpos.hf.patch(model).encoder.block[0].layer[0].SelfAttention
    layer.relative_attention_bias.weight.fill_(-40)
    x = torch.randn(2, 3, 32, dtype=dtype)
    pairs = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    pairs[:, :, 0] = False
    lowest = torch.zeros(1, 1, 3, 3, dtype=dtype).masked_fill(~pairs, torch.finfo(dtype).min)
    for mask in (pairs, lowest, torch.tensor([[False] * 3, [False, True, True]])):
        output, _, weights = layer(x, mask=mask, output_attentions=True)
        assert output.isfinite().all()
        hidden = ~mask[:, None, None] if mask.dim() == 2 else ~pairs
        assert not weights[hidden.expand_as(weights)].any()
        seeing = weights.float().sum(-1)[~hidden.expand_as(weights).all(-1)]
        torch.testing.assert_close(seeing, torch.ones_like(seeing), rtol=0, atol=0.01)
    layer.q.weight.mul_(1000)  # nor beside scores of thousands
    _, _, weights = layer(x, mask=mask, output_attentions=True)
    assert weights.isfinite().all()
    assert not weights[hidden.expand_as(weights)].any()
    layer.q.weight.div_(1000)
    ids, mask = torch.tensor([[0, 0, 0], [0, 5, 6]]), torch.tensor([[0, 0, 0], [0, 1, 1]])
    assert model(ids, attention_mask=mask).last_hidden_state.isfinite().all()


@torch.no_grad()
def test_m5_a_masked_key_has_no_weight_at_all() -> None:
    """A mask of -1e4 was beaten: scores of -12000, -12001 and a hidden 0 give 0.7311, 0.2689 and 0."""
    config = hf.T5Config(vocab_size=9, d_model=2, d_kv=2, d_ff=8, num_layers=1, num_heads=1)
    layer = relpos.hf.patch(hf.T5EncoderModel(config).eval()).encoder.block[0].layer[0].SelfAttention
    layer.relative_attention_bias.weight.zero_()
    for project in (layer.q, layer.k):
        nn.init.eye_(project.weight)
    x = torch.tensor([[[-12000.0, 1.0], [-12001.0, 1.0], [0.0, 1.0]]])
    layer.q.weight.copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))  # every query is (1, 0)
    for mask in (torch.tensor([[True, True, False]]), torch.tensor([[1, 1, 0]])[:, None, None].expand(1, 1, 3, 3)):
        weights = layer(x, mask=mask, output_attentions=True)[2][0, 0, :2]
        torch.testing.assert_close(weights, torch.tensor([0.7311, 0.2689, 0.0]).expand(2, 3), rtol=0, atol=5e-5)
        assert not weights[:, 2].any()
        layer.relative_attention_bias.weight.fill_(-3e4)  # nor does a learned bias lift it
        assert not layer(x, mask=mask, output_attentions=True)[2][..., 2].any()
        layer.relative_attention_bias.weight.zero_()


@ALIBI
@pytest.mark.parametrize("precision", ["model", "exact"])
@torch.no_grad()
def test_m7_left_padding_shifts_nothing(name: str, precision: str) -> None:
    """BLOOM had to shift its bias: 5 tokens behind 3 of padding, 4 heads, equal the 5 alone; prompted further too."""
    tiny = TINY[name]
    model = relpos.hf.patch(tiny.model(), precision=precision)
    ids = torch.randint(3, 61, (2, 8))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    together = model(input_ids=ids, attention_mask=mask).logits[1, 3:]
    alone = model(input_ids=ids[1:, 3:]).logits[0]
    near(together, alone, 1e-6 if precision == "model" else 1e-5)
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    both = model.generate(ids, attention_mask=mask, **how)[1:, 3:]
    assert torch.equal(both, model.generate(ids[1:, 3:], attention_mask=mask[1:, 3:], **how))
