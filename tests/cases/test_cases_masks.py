"""Masks: rows that see nothing, garbage in padding, padding on either side."""

from __future__ import annotations

import math

import pytest
import torch
from conformance import EMBED_DIM, EVERYWHERE, HEADS, INVARIANT, RELATIVE, Built, build, name_of, place_of, tensors
from torch import Tensor, nn

import relpos

EXACT = 1e-12  # float64, outputs of about one

every_relative_scheme = pytest.mark.parametrize("built", RELATIVE, ids=name_of)


def padding(side: str, pads: list[int], length: int) -> Tensor:
    """A mask `[B, length]`, True = a token, with that many pads in each row."""
    at = torch.arange(length)
    count = torch.tensor(pads)[:, None]
    return at >= count if side == "left" else at < length - count


@pytest.mark.parametrize("blind", [[2], [0], [3, 1], [0, 1, 2, 3]])
@every_relative_scheme
def test_m1_a_row_that_sees_nothing_is_zero(built: Built, blind: list[int]) -> None:
    """A row with no allowed key gives NaN, and NaN gradients poison the whole batch."""
    scheme = build(built)
    sees = [row for row in range(4) if row not in blind]
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[blind] = False
    whole = [tensor.requires_grad_() for tensor in tensors(query_len=4)]
    query, key, value = whole
    output = relpos.attention(query, key, value, scheme, attn_mask=mask)
    assert (output[:, :, blind] == 0.0).all()
    output.sin().sum().backward()
    gradients = [tensor.grad for tensor in (*whole, *scheme.parameters())]
    # Dropping those rows: the other queries alone, at their own positions.
    scheme.zero_grad()
    kept = [tensor.detach().clone().requires_grad_() for tensor in (query[:, :, sees], key, value)]
    positions = relpos.Positions.explicit(torch.tensor(sees, dtype=torch.int64), torch.arange(4))
    alone = relpos.attention(kept[0], kept[1], kept[2], scheme, positions=positions)
    torch.testing.assert_close(output[:, :, sees], alone, rtol=0.0, atol=EXACT)
    alone.sin().sum().backward()
    expected = [tensor.grad for tensor in (*kept, *scheme.parameters())]
    assert kept[0].grad is not None
    expected[0] = torch.zeros_like(query).index_copy(2, torch.tensor(sees, dtype=torch.int64), kept[0].grad)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert gradient is not None
        assert wanted is not None
        torch.testing.assert_close(gradient, wanted, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("place", EVERYWHERE, ids=place_of)
def test_m1_a_row_that_only_a_window_and_padding_blind_is_zero(place: tuple[Built, str]) -> None:
    """The same on every backend, where no matrix says so: row 2 sees itself alone, and it is padding."""
    scheme, keep = build(place[0]), torch.tensor([[True, True, False, True]]).expand(2, -1)
    positions = torch.arange(4)
    mask = (positions == positions[:, None]) & keep[:1]
    results = []
    for call in ({"window": 0, "key_mask": keep, "backend": place[1]}, {"attn_mask": mask, "backend": "reference"}):
        leaves = [tensor.requires_grad_() for tensor in tensors(query_len=4)]
        output = relpos.attention(*leaves, scheme, **call)
        wanted = [*leaves, *scheme.parameters()]
        results.append([output, *torch.autograd.grad(output.sin().sum(), wanted, materialize_grads=True)])
    assert (results[0][0][:, :, 2] == 0.0).all()
    assert all((gradient[:, :, 2] == 0.0).all() for gradient in results[0][1:4])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=EXACT)


def test_m1_a_padded_row_of_the_batch_leaves_the_others_alone() -> None:
    """The same, through a layer: one batch row is all padding, the other trains as alone."""
    layer = relpos.RelativeAttention(EMBED_DIM, HEADS, build(("t5", {}))).double()
    x = torch.randn(2, 5, EMBED_DIM, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True] * 5, [False] * 5])
    layer(x, key_mask=mask)[0].sin().sum().backward()
    together = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    layer(x[:1].detach())[0].sin().sum().backward()
    for gradient, parameter in zip(together, layer.parameters(), strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        torch.testing.assert_close(gradient, parameter.grad, rtol=EXACT, atol=EXACT)
    assert x.grad is not None
    assert (x.grad[1] == 0.0).all()


def strongly_biased(kind: str, size: float) -> relpos.Scheme:
    """Two heads whose bias is `-size` at every distance but 0 (ALiBi: and falls on), or at every distance."""
    if kind == "alibi":
        return relpos.ALiBi(2, slopes=[size, size])
    scheme: relpos.T5Bias | relpos.ShawBias = relpos.T5Bias(2) if kind == "t5" else relpos.ShawBias(2, max_distance=3)
    nn.init.constant_(scheme.table, -size)
    return scheme


@pytest.mark.parametrize("size", [16.0, 40.0, 60000.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["t5", "alibi", "shaw_bias"])
def test_m3_mask_and_bias_never_add_up_to_infinity(kind: str, dtype: torch.dtype, size: float) -> None:
    """The minimum of float16 plus a bias of -16 or less is -inf, and a masked row then NaN."""
    if kind == "t5":
        size = -size if size > 1e4 else size  # a large positive bias as well
    scheme = strongly_biased(kind, size).to(dtype)
    query, key, value = torch.randn(3, 2, 2, 4, 8).to(dtype).unbind()
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[0] = False
    output = relpos.attention(query, key, value, scheme, attn_mask=mask)
    assert output.isfinite().all()
    assert (output[:, :, 0] == 0.0).all()
    assert (output[:, :, 1:] != 0.0).any(-1).all()
    padded = relpos.attention(query, key, value, scheme, key_mask=torch.tensor([[False] * 4, [True] * 4]))
    assert padded.isfinite().all()
    assert (padded[0] == 0.0).all()


@pytest.mark.parametrize("hidden_by", ["key_mask", "attn_mask", "lengths"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([-12000.0, -12001.0, 0.0], [0.7311, 0.2689, 0.0]),
        ([-1e7, -1e7, 1e7], [0.5, 0.5, 0.0]),
        ([-12000.0, -11999.0, 3e6], [0.2689, 0.7311, 0.0]),
    ],
)
def test_m5_a_masked_key_has_no_weight_at_all(
    scores: list[float], expected: list[float], dtype: torch.dtype, hidden_by: str
) -> None:
    """A mask of -1e4 is beaten by large negative scores."""
    key = torch.tensor(scores, dtype=dtype).view(1, 1, 3, 1)
    query = torch.ones(1, 1, 1, 1, dtype=dtype)
    mask = torch.tensor([[True, True, False]])
    got = relpos.attention_weights(
        query,
        key,
        key,
        relpos.T5Bias(1),
        positions=relpos.Positions.arange(1, 3, query_start=0),
        key_mask=mask if hidden_by == "key_mask" else None,
        attn_mask=mask if hidden_by == "attn_mask" else None,
        lengths=torch.tensor([2]) if hidden_by == "lengths" else None,
    )[0, 0, 0]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=dtype), rtol=0.0, atol=5e-5)
    assert got[2].item() == 0.0


@pytest.mark.parametrize("size", [-12000.0, -1e6])
@pytest.mark.parametrize("kind", ["t5", "shaw_bias"])
def test_m5_a_learned_bias_does_not_lift_the_mask(kind: str, size: float) -> None:
    """The same, for a learned bias that is far below the mask's number at every visible key."""
    scheme = strongly_biased(kind, -size)
    query = torch.randn(1, 2, 4, 8)
    keep = torch.tensor([[True, False, True, True]])
    got = relpos.attention_weights(query, query, query, scheme, key_mask=keep)
    assert (got[..., 1] == 0.0).all()
    torch.testing.assert_close(got.sum(-1), torch.ones(1, 2, 4))


@pytest.mark.parametrize("where", ["key", "value", "query", "all"])
@pytest.mark.parametrize(("side", "garbage"), [("left", math.inf), ("right", math.nan)])
@pytest.mark.parametrize("place", EVERYWHERE, ids=place_of)
def test_m6_padding_may_hold_anything(place: tuple[Built, str], garbage: float, side: str, where: str) -> None:
    """NaN or inf in padded keys or values leaks through 0 * NaN."""
    scheme, backend = build(place[0]), place[1]
    query, key, value = tensors()
    keep = padding(side, [2, 3], 6)
    clean = relpos.attention(query, key, value, scheme, key_mask=keep, backend=backend)
    dirty = [
        tensor.masked_fill(~keep[:, None, :, None], garbage) if where in (name, "all") else tensor
        for name, tensor in (("query", query), ("key", key), ("value", value))
    ]
    got = relpos.attention(dirty[0], dirty[1], dirty[2], scheme, key_mask=keep, backend=backend)
    real = keep[:, None, :, None].expand_as(got)
    assert torch.equal(got[real], clean[real])


@pytest.mark.parametrize("garbage", [math.inf, math.nan])
@pytest.mark.parametrize("hidden_by", ["lengths", "attn_mask", "causal", "window", "documents"])
def test_m6_whatever_hides_the_keys(hidden_by: str, garbage: float) -> None:
    """The same, for every way in which keys can be out of sight, and for gradients."""
    scheme = build(("shaw", {}))
    query, key, value = tensors()
    positions = torch.arange(6)
    ways: dict[str, dict[str, object]] = {
        "lengths": {"lengths": torch.tensor([4, 4])},
        "attn_mask": {"attn_mask": (positions < 4).expand(6, 6)},
        "causal": {"is_causal": True, "positions": relpos.Positions.explicit(positions.clamp(max=3), positions)},
        "window": {"window": (9, 0), "positions": relpos.Positions.explicit(positions.clamp(max=3), positions)},
        "documents": {"positions": relpos.Positions.from_mask((positions < 4).expand(2, 6))},
    }
    call = dict(ways[hidden_by])
    hidden = (positions >= 4)[:, None]
    results = []
    for filling in (0.0, garbage):
        inputs = [key.masked_fill(hidden, filling), value.masked_fill(hidden, filling)]
        sees_nothing = hidden & (hidden_by in ("lengths", "documents"))  # there, queries are hidden with their keys
        leaves = [x.clone().requires_grad_() for x in (query.masked_fill(sees_nothing, filling), *inputs)]
        output = relpos.attention(leaves[0], leaves[1], leaves[2], scheme, **call)  # type: ignore[arg-type]
        output.sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves)])
    for clean, dirty in zip(*results, strict=True):
        assert clean is not None
        assert dirty is not None
        assert clean.isfinite().all()
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize(("side", "pads"), [("left", [3, 0]), ("right", [1, 4])])
@every_relative_scheme
def test_m7_padding_shifts_no_relative_scheme(built: Built, pads: list[int], side: str) -> None:
    """BLOOM had to shift ALiBi for padded batches; a bias of the distance needs no shift."""
    layer = relpos.RelativeAttention(EMBED_DIM, HEADS, build(built)).double()
    x = torch.randn(2, 8, EMBED_DIM, dtype=torch.float64)
    keep = padding(side, pads, 8)
    positions = None if built in INVARIANT else relpos.Positions.from_mask(keep)
    for is_causal in (False, True):
        layer.is_causal = is_causal
        together = layer(x, key_mask=keep, positions=positions)
        for row in range(2):
            alone = layer(x[row : row + 1, keep[row]])[0]
            torch.testing.assert_close(together[row, keep[row]], alone, rtol=0.0, atol=EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_m7_alibi_left_padded(dtype: torch.dtype) -> None:
    """The same, in the report's numbers: 5 tokens with 3 left pads, 4 heads."""
    query, key, value = torch.randn(3, 1, 4, 8, 16).to(dtype).unbind()
    keep = padding("left", [3], 8)
    padded = relpos.attention(query, key, value, relpos.ALiBi(4), key_mask=keep, is_causal=True)[:, :, 3:]
    alone = relpos.attention(query[:, :, 3:], key[:, :, 3:], value[:, :, 3:], relpos.ALiBi(4), is_causal=True)
    tolerance = max(1e-6, torch.finfo(dtype).eps)
    torch.testing.assert_close(padded, alone, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([0, 0, 1, 1, 1], [0, 0, 0, 1, 2]),
        ([1, 1, 0, 0], [0, 1, 0, 0]),
        ([1, 0, 1, 1], [0, 0, 1, 2]),
        ([1, 1, 1], [0, 1, 2]),
        ([0, 0], [0, 0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_m8_positions_count_the_tokens(mask: list[int], expected: list[int], dtype: torch.dtype) -> None:
    """A left-padded batch with default positions is silently wrong for every shorter row."""
    positions = relpos.Positions.from_mask(torch.tensor([mask]).to(dtype))
    assert positions.query.tolist() == positions.key.tolist() == [expected]


class Encoder(nn.Module):
    """Token embeddings, an absolute scheme, one attention layer, and logits."""

    def __init__(self, scheme: relpos.LearnedAbsolute | relpos.Sinusoidal, is_causal: bool) -> None:
        super().__init__()
        self.scheme = scheme
        self.tokens = nn.Embedding(11, 32)
        self.layer = relpos.RelativeAttention(32, 4, is_causal=is_causal)
        self.head = nn.Linear(32, 11)
        self.double()

    def forward(self, ids: Tensor, positions: relpos.Positions | None = None) -> Tensor:
        x = self.scheme.embed(self.tokens(ids), positions)
        logits: Tensor = self.head(x + self.layer(x, positions=positions))
        return logits


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pads", [[1, 0, 3], [2, 2, 4]])
@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_m8_padded_logits_equal_unpadded_ones(kind: str, pads: list[int], side: str, is_causal: bool) -> None:
    """The same, through a small model with learned or sinusoidal positions."""
    scheme = relpos.LearnedAbsolute(32, 6) if kind == "learned" else relpos.Sinusoidal(32)
    if isinstance(scheme, relpos.LearnedAbsolute):
        nn.init.normal_(scheme.table)
    model = Encoder(scheme, is_causal)
    ids, keep = torch.randint(11, (3, 6)), padding(side, pads, 6)
    together = model(ids, relpos.Positions.from_mask(keep))
    for row in range(3):
        alone = model(ids[row : row + 1, keep[row]])[0]
        torch.testing.assert_close(together[row, keep[row]], alone, rtol=0.0, atol=EXACT)
    if side == "left":  # default positions: what the report met
        wrong = model(ids)[0, keep[0]]
        assert (wrong - together[0, keep[0]]).abs().max() > 1e-2
