"""What is particular to encoders: where tables end, absolute positions beside relative ones, what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from test_patched_models import eager, near
from zoo import ENCODER, Tiny, deberta, inputs, mpnet, wav2vec2_bert

import relpos.hf


def both(tiny: Tiny, length: int) -> tuple[Any, Any, dict[str, Any]]:
    """The model as transformers compute it, patched, and a batch with padding where there is room for it."""
    theirs = eager(tiny.model())
    ours = relpos.hf.patch(eager(tiny.model()))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours, inputs(tiny, 2, length, "right" if length > 2 else None)


def agree(tiny: Tiny, length: int) -> None:
    theirs, ours, given = both(tiny, length)
    shown = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
    near(ours(**given).logits[shown], theirs(**given).logits[shown], 1e-5, f"length {length}")


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 130, 200])
@torch.no_grad()
def test_mpnet_up_to_and_past_its_last_bucket(length: int) -> None:
    agree(Tiny(mpnet(), ENCODER, 4, pad=1), length)


@torch.no_grad()
def test_mpnets_table_is_transformers_bias_at_every_distance() -> None:
    """Edges of buckets are logarithms in float32: none may move."""
    model = Tiny(mpnet(), ENCODER, 4).model()
    x = torch.zeros(1, 300, 1)
    pairs = model.mpnet.encoder.compute_position_bias(x)[0]
    table = relpos.hf.patch(model).mpnet.encoder.compute_position_bias(x)
    distance = torch.arange(300) - torch.arange(300)[:, None]
    assert torch.equal(table[:, distance.clamp(-128, 128) + 128], pairs)


def test_mpnet_layers_share_one_table() -> None:
    """B9: every layer reads it, and its gradient is their sum."""
    tiny = Tiny(mpnet(), ENCODER, 4, pad=1)
    theirs, ours, given = both(tiny, 9)
    for model in (theirs, ours):
        model(**given).logits[given["attention_mask"].bool()].pow(2).sum().backward()
    have, want = (m.mpnet.encoder.relative_attention_bias.weight.grad for m in (ours, theirs))
    assert (want != 0).any()
    near(have, want, 1e-4)
    given |= {"output_attentions": True}
    with torch.no_grad():
        before = ours(**given).attentions[1]
        ours.mpnet.encoder.relative_attention_bias.weight.zero_()
        assert (ours(**given).attentions[1] - before).abs().max() > 0.01


def test_mpnet_refuses_positions_of_ones_own() -> None:
    encoder = relpos.hf.patch(mpnet()()).mpnet.encoder
    with pytest.raises(ValueError, match=r"compute_position_bias.*position_ids of shape \[1, 3\].*restore"):
        encoder.compute_position_bias(torch.zeros(1, 3, 4), position_ids=torch.arange(3)[None])


@pytest.mark.parametrize("length", [1, 2, 5, 8, 9, 10, 20])
@torch.no_grad()
def test_deberta_v1_reads_the_row_of_the_distance_at_any_length(length: int) -> None:
    """C5: transformers slice the table by the length of the input; rows are the same."""
    agree(Tiny(deberta(max_relative_positions=8), ENCODER, 3), length)


@torch.no_grad()
def test_deberta_v1_rows() -> None:
    """C5 in numbers: the weight of a key says which row its distance read, row r of the table being (r, 0, ...)."""
    config = {"max_relative_positions": 8, "pos_att_type": ["c2p"], "num_hidden_layers": 1, "num_attention_heads": 1}
    model = relpos.hf.patch(deberta(**config)().eval())
    attention = model.deberta.encoder.layer[0].attention.self
    for parameter in attention.parameters():
        parameter.zero_()
    attention.q_bias[0] = 1.0
    attention.pos_proj.weight[0, 0] = 1.0
    table = torch.zeros(16, 32)
    table[:, 0] = torch.arange(16.0)
    for length, rows in {5: {(4, 0): 12, (0, 4): 4}, 20: {(19, 0): 15, (0, 19): 0}}.items():
        _, p = attention(torch.zeros(1, length, 32), None, True, rel_embeddings=table)
        scores = p[0, 0].log() * (2 * 32) ** 0.5
        for (i, j), row in rows.items():
            assert scores[i, j] - scores[i, i] == pytest.approx(row - 8, abs=1e-4)


@pytest.mark.parametrize("parts", [[], ["c2p"], ["c2p", "p2c", "p2p"]], ids="-".join)
@torch.no_grad()
def test_deberta_v1_scale_counts_the_names_of_parts(parts: list[str]) -> None:
    """C6, and p2p, which adds no score."""
    agree(Tiny(deberta(pos_att_type=parts), ENCODER, 3), 20)


@torch.no_grad()
def test_deberta_v1_without_relative_attention() -> None:
    agree(Tiny(deberta(relative_attention=False, position_biased_input=True), ENCODER, 3), 20)


def test_deberta_v1_with_talking_heads_is_left_alone() -> None:
    model = relpos.hf.patch(deberta(talking_head=True, position_biased_input=True)())
    summary = relpos.hf.summary(model)
    assert summary.patched == 0
    assert str(summary) == "2 x DisentangledSelfAttention  left alone: talking_head mixes the scores of heads"
    assert model(input_ids=torch.full((1, 5), 5)).logits.shape == (1, 5, 7)


def test_deberta_v1_refuses_distances_and_queries_of_ones_own() -> None:
    encoder = relpos.hf.patch(deberta()().eval()).deberta.encoder
    x, mask = torch.zeros(1, 4, 32), torch.ones(1, 4)
    with pytest.raises(ValueError, match=r"relative_pos of shape \[1, 4, 4\].*restore"):
        encoder(x, mask, relative_pos=torch.zeros(1, 4, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"query_states of shape \[1, 4, 32\]"):
        encoder(x, mask, query_states=x)


@pytest.mark.parametrize("length", [1, 2, 4, 7, 8, 30])
@torch.no_grad()
def test_wav2vec2_bert_up_to_and_past_its_last_distances(length: int) -> None:
    agree(Tiny(wav2vec2_bert(), ENCODER, 2), length)


@torch.no_grad()
def test_wav2vec2_bert_with_an_adapter() -> None:
    """The adapter's attention has no positions and a mask of its own length; the configuration is one."""
    tiny = Tiny(wav2vec2_bert(add_adapter=True, num_adapter_layers=2), ENCODER, 4)
    theirs, ours, given = both(tiny, 30)
    assert relpos.hf.summary(ours).patched == 4
    near(ours(**given).logits[0], theirs(**given).logits[0], 1e-5)
    near(ours(**given).logits[1, :5], theirs(**given).logits[1, :5], 1e-5)  # 20 frames, halved twice
    relpos.hf.restore(ours)
    assert ours.config._attn_implementation == "eager"
    assert torch.equal(ours(**given).logits, theirs(**given).logits)


@pytest.mark.parametrize("kind", ["relative", "rotary"])
@torch.no_grad()
def test_wav2vec2_bert_with_other_positions_is_left_alone(kind: str) -> None:
    tiny = Tiny(wav2vec2_bert(position_embeddings_type=kind, add_adapter=True, num_adapter_layers=1), ENCODER, 0)
    theirs, ours, given = both(tiny, 9)
    summary = relpos.hf.summary(ours)
    assert summary.patched == 0
    assert {row.reason for row in summary.rows} == {f"position_embeddings_type is '{kind}', not 'relative_key'"}
    assert torch.equal(ours(**given).logits, theirs(**given).logits)


def test_what_has_no_distance_tables_is_left_alone() -> None:
    config = hf.BertConfig(vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    model = relpos.hf.patch(hf.BertModel(config))
    assert str(relpos.hf.summary(model)) == "1 x BertSelfAttention  left alone: its positions are absolute"
