"""Packed documents, slices of heads, and models that move."""

from __future__ import annotations

import itertools

import pytest
import torch
from conformance import EMBED_DIM, HEADS, RELATIVE, Built, build, name_of, tensors
from torch import Tensor, nn

import relpos

EXACT = 1e-12  # float64, outputs of about one

every_relative_scheme = pytest.mark.parametrize("built", RELATIVE, ids=name_of)


def causal_layer(scheme: relpos.Scheme | None) -> relpos.RelativeAttention:
    return relpos.RelativeAttention(EMBED_DIM, HEADS, scheme, is_causal=True).double()


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, EMBED_DIM, dtype=torch.float64)


def packed(lengths: list[int]) -> relpos.Positions:
    return relpos.Positions.packed(torch.tensor([0, *itertools.accumulate(lengths)]))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("lengths", [[6, 6], [1, 5, 3]])
@every_relative_scheme
def test_p1_packed_documents_equal_single_runs(built: Built, lengths: list[int], is_causal: bool) -> None:
    """Packed documents continue the position count, or see each other."""
    layer = causal_layer(build(built))
    layer.is_causal = is_causal
    documents = [tokens(length, batch=2) for length in lengths]
    if len(set(lengths)) == 1:  # equal lengths: the same document again and again
        documents = documents[:1] * len(documents)
    got = layer(torch.cat(documents, dim=1), positions=packed(lengths)).split(lengths, dim=1)
    for output, document in zip(got, documents, strict=True):
        torch.testing.assert_close(output, layer(document), rtol=0.0, atol=EXACT)
    if len(set(lengths)) == 1:
        for output in got[1:]:
            torch.testing.assert_close(output, got[0], rtol=0.0, atol=EXACT)


@pytest.mark.parametrize("lengths", [[6, 6], [2, 5, 1]])
@pytest.mark.parametrize("scheme", [relpos.LearnedAbsolute(32, 6), relpos.Sinusoidal(32)])
def test_p1_absolute_positions_restart(scheme: relpos.LearnedAbsolute | relpos.Sinusoidal, lengths: list[int]) -> None:
    """The same, for positions that are added to the input; the table need only hold the longest document."""
    scheme = scheme.double()
    layer = causal_layer(None)
    documents = [tokens(length, batch=1) for length in lengths]
    positions = packed(lengths)
    got = layer(scheme.embed(torch.cat(documents, dim=1), positions), positions=positions).split(lengths, dim=1)
    for output, document in zip(got, documents, strict=True):
        torch.testing.assert_close(output, layer(scheme.embed(document)), rtol=0.0, atol=EXACT)


@pytest.mark.parametrize(
    ("heads", "start", "stop", "expected"),
    [
        (8, 4, 8, [1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (8, 0, 4, [1 / 2, 1 / 4, 1 / 8, 1 / 16]),
        (6, 3, 6, [1 / 256, 1 / 2, 1 / 8]),
        (4, 1, 2, [1 / 16]),
    ],
)
@pytest.mark.parametrize("learned", [False, True])
def test_p5_a_ranks_slopes_are_slices_of_the_global_ones(
    learned: bool, heads: int, start: int, stop: int, expected: list[float]
) -> None:
    """Each tensor-parallel rank computes slopes from its local heads."""
    part = relpos.ALiBi(heads, learned=learned).heads(start, stop)
    assert part.num_heads == stop - start
    assert part.bias(2)[:, 1, 0].tolist() == [-slope for slope in expected]


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (2, 4), (1, 2), (0, 4)])
@every_relative_scheme
def test_p5_a_slice_of_heads_computes_those_heads(built: Built, start: int, stop: int) -> None:
    """The same, for every scheme that has tables or slopes."""
    scheme = build(built)
    query, key, value = tensors(query_len=7)
    whole = relpos.attention(query, key, value, scheme)
    of_rank = [tensor[:, start:stop] for tensor in (query, key, value)]
    got = relpos.attention(of_rank[0], of_rank[1], of_rank[2], scheme.heads(start, stop))
    torch.testing.assert_close(got, whole[:, start:stop], rtol=0.0, atol=EXACT)


@pytest.mark.parametrize(("start", "stop"), [(2, 2), (3, 9), (-1, 2)])
def test_p5_heads_outside_the_model_are_refused(start: int, stop: int) -> None:
    """The same: a slice that does not exist."""
    with pytest.raises(ValueError, match="start"):
        relpos.T5Bias(4).heads(start, stop)


@pytest.mark.parametrize(
    ("ids", "mask", "documents"),
    [
        ([0, 1, 2, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, None, None, None]),
        ([0, 0, 0, 1, 2], [0, 0, 1, 1, 1], [None, None, 0, 0, 0]),
        ([0, 1, 0, 1, 2, 0, 0], [1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, None, None]),
        ([0, 1, 2, 3], None, [0, 0, 0, 0]),
        ([0, 1, 0, 0, 1], None, [0, 0, 1, 2, 2]),
        ([4, 5, 9, 10], None, [0, 0, 1, 1]),
    ],
)
def test_p7_zeros_of_padding_begin_no_documents(
    ids: list[int], mask: list[int] | None, documents: list[int | None]
) -> None:
    """Zeros used as padding in position_ids are read as thousands of new documents."""
    kept = None if mask is None else torch.tensor(mask)
    positions = relpos.Positions.from_position_ids(torch.tensor(ids), kept)
    same = positions.same_document()
    assert same is not None
    expected = [[one is not None and one == other for other in documents] for one in documents]
    assert same.tolist() == expected
    # Tokens keep the positions that they were given.
    for index, document in enumerate(documents):
        if document is not None:
            assert positions.query[index].item() == ids[index]


@pytest.mark.parametrize("side", ["left", "right"])
@every_relative_scheme
def test_p7_padded_documents_equal_single_runs(built: Built, side: str) -> None:
    """The same, through a layer: one document of 3 tokens with 3 pads, and one of 5 with 1."""
    layer, x = causal_layer(build(built)), tokens(6)
    lengths = [3, 5]
    keep = torch.stack([torch.arange(6) < length for length in lengths])
    keep = keep.flip(1) if side == "left" else keep
    ids = (keep.cumsum(1) - 1).masked_fill(~keep, 0)
    got = layer(x, positions=relpos.Positions.from_position_ids(ids, keep))
    for row in range(2):
        torch.testing.assert_close(got[row, keep[row]], layer(x[row : row + 1, keep[row]])[0], rtol=0.0, atol=EXACT)


@every_relative_scheme
def test_x3_the_bias_follows_the_query(built: Built) -> None:
    """A bias is cached on the first device, and the model is then moved or split."""
    layer, x = causal_layer(build(built)), tokens(6)
    before = layer(x)
    moved = layer.to("meta")(x.to("meta"))
    assert moved.device.type == "meta"
    assert moved.shape == before.shape


@every_relative_scheme
def test_x3_the_bias_follows_the_dtype_and_the_length(built: Built) -> None:
    """The same: nothing of an earlier, longer or less precise call is kept."""
    layer, x = causal_layer(build(built)), tokens(6)
    expected = layer(x)
    low = layer.float()
    low(tokens(20).float())
    low(x[:, :3].float())
    again = low.double()
    # float32 rounds the parameters once, so what comes back is that model and not quite the first.
    torch.testing.assert_close(again(x), expected, rtol=0.0, atol=1e-4)
    fresh = causal_layer(build(built))
    fresh.load_state_dict(again.state_dict())
    assert torch.equal(fresh(x), again(x))


LEARNED_STATE: dict[str, set[str]] = {
    "alibi": set(),
    "rope": set(),
    "nope": set(),
    "sinusoidal": set(),
    "t5": {"table"},
    "shaw_bias": {"table"},
    "huang": {"table"},
    "learned": {"table"},
    "shaw": {"key_table", "value_table"},
    "deberta": {"c2p_table", "p2c_table"},
}


@pytest.mark.parametrize("name", LEARNED_STATE)
def test_x3_a_state_dict_holds_learned_tables_only(name: str) -> None:
    """The same: no slopes, frequencies or cached bias in a state dict, before or after a run."""
    scheme = build((name, {}))
    assert set(scheme.state_dict()) == LEARNED_STATE[name]
    if isinstance(scheme, relpos.LearnedAbsolute | relpos.Sinusoidal):
        scheme.embed(tokens(5))
    else:
        causal_layer(scheme)(tokens(5))
    assert set(scheme.state_dict()) == LEARNED_STATE[name]
    assert sum(buffer.numel() for buffer in scheme.buffers()) == 0  # nothing that could stay behind or go stale


def test_x3_learned_slopes_are_in_the_state_dict() -> None:
    """The same: what is learned is stored, and comes back."""
    trained, fresh = relpos.ALiBi(4, learned=True), relpos.ALiBi(4, learned=True)
    assert set(trained.state_dict()) == {"slopes"}
    nn.init.uniform_(trained.slopes)
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh.bias(5), trained.bias(5))


@every_relative_scheme
def test_x3_a_checkpoint_of_any_length_and_dtype_loads(built: Built) -> None:
    """The same: a state dict saved after runs at other lengths, in bf16, loads strictly and gives equal outputs."""
    trained = causal_layer(build(built)).bfloat16()
    trained(tokens(30).bfloat16())
    state: dict[str, Tensor] = {key: tensor.clone() for key, tensor in trained.state_dict().items()}
    loaded = causal_layer(build(built))
    assert loaded.load_state_dict(state, strict=True).missing_keys == []
    x = tokens(6)
    assert torch.equal(loaded(x), trained.double()(x))
