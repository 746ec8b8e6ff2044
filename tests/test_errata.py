"""Two articles that people copy from: what their snippets give, and what `relpos` gives instead.

Functions and classes named `article_...` are quoted from the articles (annotations added); they are the thing under
test, not code to follow. `docs/errata.md` tells the same story in words. What shows only in a trained model's
perplexity is the study's business; here stands the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import relpos
from relpos.functional import alibi_slopes, sinusoidal_table, t5_bucket
from relpos.terms import KeyDistance, QueryDistance, Rotation

PRINTED = 5e-5  # half a unit of the last digit that is printed here
FLOAT32 = 1e-6  # a few roundings of numbers below one

# --- Quoted from the articles ---------------------------------------------------------------------------------------


def article_bucket(
    relative_position: Tensor, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    ret: Any = 0
    n = torch.abs(relative_position)
    if bidirectional:
        num_buckets //= 2
        ret += (relative_position > 0).to(torch.long) * num_buckets
        n = torch.where(relative_position > 0, n, num_buckets - n)
    else:
        n = num_buckets - 1 - n
    max_exact = num_buckets // 2
    is_small = n < max_exact
    val = (
        num_buckets
        - max_exact
        + (torch.log(n.float() / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact))
        .long()
        .clamp(0, num_buckets - max_exact - 1)
    )
    ret += torch.where(is_small, n, val)
    buckets: Tensor = ret
    return buckets


def article_alibi_slopes(num_heads: int) -> list[float]:
    def get_slopes(n: int) -> list[float]:
        if n <= 0:
            return []
        if n <= 2:
            return [2 ** (-i) for i in range(1, n + 1)]
        closest = 2 ** math.ceil(math.log2(n))
        slopes = get_slopes(closest)
        return slopes[0::2][:n]

    return get_slopes(num_heads)


def article_alibi_bias(slopes: Tensor, t: int) -> Tensor:
    rel = torch.arange(t)[None, :] - torch.arange(t)[:, None]
    return -slopes.view(-1, 1, 1) * rel.unsqueeze(0)


class ArticleRelativeBias(nn.Module):
    """Its T5 mode."""

    def __init__(self, num_heads: int, num_buckets: int = 32) -> None:
        super().__init__()
        self.bias = nn.Embedding(num_buckets, num_heads)

    def forward(self, t: int) -> Tensor:
        rel = torch.arange(t)[:, None] - torch.arange(t)[None, :]
        bucket = article_bucket(rel, num_buckets=self.bias.num_embeddings)
        b: Tensor = self.bias(bucket)
        return b.permute(2, 0, 1) * math.sqrt(3 / 64.0)


def article_disentangled_scores(content_q: Tensor, content_k: Tensor, pos_q: Tensor, pos_k: Tensor, d_k: int) -> Tensor:
    ac = content_q @ content_k.transpose(-1, -2) / math.sqrt(d_k)
    ar = content_q @ pos_k.transpose(-1, -2) / math.sqrt(d_k)
    rp = pos_q @ content_k.transpose(-1, -2) / math.sqrt(d_k)
    return ac + ar + rp


def article_sinusoidal(t: int, d_model: int, device: str = "cpu") -> Tensor:
    pos = torch.arange(t, device=device).unsqueeze(1)
    div = torch.exp(torch.arange(0, d_model, 2) * (-torch.log(torch.tensor(10000.0)) / d_model))
    pe = torch.zeros(t, d_model)
    pe[:, 0::2] = torch.sin(pos * div)
    pe[:, 1::2] = torch.cos(pos * div)
    return pe


class ArticleLearnedAbsolute(nn.Module):
    def __init__(self, d_model: int, max_len: int = 512) -> None:
        super().__init__()
        self.weight = nn.Embedding(max_len, d_model)

    def forward(self, x: Tensor) -> Tensor:
        pos = torch.arange(x.size(1), device=x.device).unsqueeze(0)
        embedded: Tensor = x + self.weight(pos)
        return embedded


class ArticleRelativePositionBias(nn.Module):
    def __init__(self, max_distance: int = 64, num_heads: int = 8) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.relative_bias = nn.Embedding(2 * max_distance + 1, num_heads)

    def forward(self, seq_len: int) -> Tensor:
        distances = torch.arange(seq_len).unsqueeze(0) - torch.arange(seq_len).unsqueeze(1)
        distances = distances.clamp(-self.max_distance, self.max_distance)
        bias: Tensor = self.relative_bias(distances + self.max_distance)
        return bias.permute(2, 0, 1)


# --- Helpers --------------------------------------------------------------------------------------------------------


def weights_of(scheme: relpos.Scheme | None, length: int, heads: int = 1) -> Tensor:
    """Causal probabilities where content says nothing: `[H, T, T]`, in float64."""
    zeros = torch.zeros(1, heads, length, 4, dtype=torch.float64)
    return relpos.attention_weights(zeros, zeros, zeros, scheme, is_causal=True)[0]


def causal_softmax(bias: Tensor) -> Tensor:
    future = torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1)
    return bias.double().masked_fill(future, -math.inf).softmax(-1)


def ours(distance: Tensor, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    return t5_bucket(distance, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance)


# --- "T5 scales its bias by sqrt(3 / d_k)" --------------------------------------------------------------------------


def test_t5_adds_its_bias_as_it_is() -> None:
    """A bias of 2 between two keys: T5 gives the nearer one 0.8808, the article's factor 0.6066."""
    factor = math.sqrt(3 / 64)
    assert factor == pytest.approx(0.2165, abs=PRINTED)
    zeros = torch.zeros(1, 1, 2, 64)

    def nearer(scheme: relpos.T5Bias) -> float:
        with torch.no_grad():
            scheme.table[0, 1] = -2.0  # one token back
        return relpos.attention_weights(zeros, zeros, zeros, scheme, is_causal=True)[0, 0, 1, 1].item()

    assert nearer(relpos.T5Bias(1)) == pytest.approx(0.8808, abs=PRINTED)
    assert nearer(relpos.T5Bias(1, bias_scale=factor)) == pytest.approx(0.6066, abs=PRINTED)


@pytest.mark.parametrize("width", [64, 128, 16])
def test_t5_does_not_scale_its_products_either(width: int) -> None:
    """1 / sqrt(d) is in the article's scores and not in T5's; 1 / sqrt(3 d) is DeBERTa's."""
    query = torch.randn(1, 2, 3, width)
    assert relpos.explain(query, query, query, relpos.T5Bias(2)).scale == 1.0
    assert relpos.T5Bias(2).bias_scale == 1.0
    assert relpos.Disentangled(2, width).scale == pytest.approx(1 / math.sqrt(3 * width))


@pytest.mark.parametrize("width", [64, 16])
def test_the_articles_t5_is_an_option(width: int) -> None:
    """Its scores, with buckets that lie in the table: `T5Bias(scale=None, bias_scale=sqrt(3 / d))`."""
    scheme = relpos.T5Bias(2, scale=None, bias_scale=math.sqrt(3 / width)).double()
    nn.init.normal_(scheme.table)
    query, key, value = torch.randn(3, 1, 2, 20, width, dtype=torch.float64).unbind()
    distance = torch.arange(20) - torch.arange(20)[:, None]
    scores = query @ key.transpose(-1, -2) / math.sqrt(width)
    scores = scores + scheme.table[:, ours(distance)] * math.sqrt(3 / width)
    torch.testing.assert_close(relpos.attention(query, key, value, scheme), scores.softmax(-1) @ value)


@pytest.mark.parametrize("factor", [math.sqrt(3 / 64), 0.01])
def test_a_learned_table_absorbs_the_factor(factor: float) -> None:
    """So leaving it out cannot ruin a model: the same scores with a table that is as much smaller."""
    scaled, plain = relpos.T5Bias(3, bias_scale=factor), relpos.T5Bias(3)
    nn.init.normal_(scaled.table)
    with torch.no_grad():
        plain.table.copy_(scaled.table * factor)
    torch.testing.assert_close(plain.bias(50), scaled.bias(50), rtol=FLOAT32, atol=FLOAT32)


# --- Its bucket function --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bidirectional", "low", "high"), [(True, -24, 28), (False, -9, 21)])
def test_the_articles_buckets_leave_the_table(bidirectional: bool, low: int, high: int) -> None:
    """Distances within 40, a table of 32 rows: rows -24 to 28, and one-way -9 to 21."""
    distance = torch.arange(-40, 41)
    theirs = article_bucket(distance, bidirectional)
    assert (theirs.min().item(), theirs.max().item()) == (low, high)
    right = ours(distance, bidirectional)
    assert (right.min().item(), right.max().item()) == (0, 28 if bidirectional else 23)


def test_the_articles_buckets_merge_near_distances() -> None:
    """Into the past, 1 to 4 tokens back are one bucket, and the token itself reads row 10; T5 keeps 0 to 7 apart."""
    back = -torch.arange(8)
    assert article_bucket(back).tolist() == [10, 9, 9, 9, 9, 8, 8, 8]
    assert ours(back).tolist() == list(range(8))
    right = (article_bucket(-torch.arange(41)) == ours(-torch.arange(41))).nonzero().flatten()
    assert right.tolist() == [8]  # of 41 distances, one bucket agrees
    one_way = article_bucket(-torch.arange(41), False) == ours(-torch.arange(41), False)
    assert not one_way.any()


@pytest.mark.parametrize("length", [18, 40, 100])
def test_the_articles_module_fails_from_18_tokens_on(length: int) -> None:
    """IndexError at 40 tokens; up to 17 it runs, with the wrong rows."""
    with pytest.raises(IndexError):
        ArticleRelativeBias(12)(length)
    theirs = ArticleRelativeBias(12)(17) / math.sqrt(3 / 64)
    assert theirs.isfinite().all()
    assert relpos.RelativeBias(12, mode="t5")(length).shape == (12, length, length)


def test_the_articles_lookup_wraps_around_in_silence() -> None:
    """`bias_weight[:, bucket]` takes row -1 for the last one: 17 tokens back reads the row of far keys to the right."""
    table = torch.arange(32)[None]
    assert article_bucket(torch.tensor(-17)).item() == -1
    assert table[:, article_bucket(torch.tensor(-17))].item() == 31
    assert table[:, ours(torch.tensor(-17))].item() == 10


# --- rel = i - j here, j - i there ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [4, 9])
def test_one_sign_for_every_scheme(length: int) -> None:
    """A table that likes the token before: the article's `i - j` finds the token after."""
    i_minus_j = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    j_minus_i = torch.arange(length).unsqueeze(0) - torch.arange(length).unsqueeze(1)
    distance = relpos.Positions.arange(length).distance()
    assert torch.equal(distance, j_minus_i)
    assert torch.equal(distance, -i_minus_j)
    middle = length // 2
    t5, shaw = relpos.T5Bias(1), relpos.ShawBias(1, 2)
    with torch.no_grad():
        t5.table[0, ours(torch.tensor(-1))] = 5.0
        shaw.table[0, 1] = 5.0
    for scheme in (t5, shaw):
        assert scheme.bias(length)[0, middle].argmax().item() == middle - 1
    assert t5.table[0][ours(i_minus_j)][middle].argmax().item() == middle + 1


# --- ALiBi = -m (j - i) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slope", "theirs_far", "ours_far"), [(1 / 2, 0.9817, 0.0), (1 / 16, 0.4008, 0.0121), (1 / 256, 0.1391, 0.1118)]
)
def test_the_articles_alibi_rewards_distance(slope: float, theirs_far: float, ours_far: float) -> None:
    """64 tokens, no content: the weight that the last query gives to the 8 farthest keys."""
    theirs = causal_softmax(article_alibi_bias(torch.tensor([slope]), 64))[0, -1]
    right = weights_of(relpos.ALiBi(1, slopes=[slope]), 64)[0, -1]
    assert theirs[:8].sum().item() == pytest.approx(theirs_far, abs=PRINTED)
    assert right[:8].sum().item() == pytest.approx(ours_far, abs=PRINTED)
    assert (theirs.diff() < 0).all()  # the farther, the more
    assert (right.diff() > 0).all()
    torch.testing.assert_close(theirs, right.flip(0), rtol=0.0, atol=FLOAT32)


@pytest.mark.parametrize("heads", [8, 12])
def test_the_articles_alibi_is_the_negative_of_ours_in_a_causal_model(heads: int) -> None:
    """It stays reachable, as a control: `ALiBi(slopes=-alibi_slopes(H))`. An encoder is symmetric in ours."""
    theirs = article_alibi_bias(alibi_slopes(heads), 20)
    torch.testing.assert_close(theirs.tril(), -relpos.ALiBi(heads).bias(20).tril())
    control = relpos.ALiBi(heads, slopes=-alibi_slopes(heads))
    torch.testing.assert_close(theirs.tril(), control.bias(20).tril())
    assert torch.equal(relpos.ALiBi(heads).bias(20), relpos.ALiBi(heads).bias(20).transpose(1, 2))


# --- ALiBi's slopes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [3, 4, 8, 12, 16])
def test_the_articles_slopes_recurse_without_end(heads: int) -> None:
    """RecursionError for 3 heads or more."""
    with pytest.raises(RecursionError):
        article_alibi_slopes(heads)
    assert alibi_slopes(heads).shape == (heads,)


@pytest.mark.parametrize(
    ("heads", "theirs", "right"), [(1, [1 / 2], [1 / 256]), (2, [1 / 2, 1 / 4], [1 / 16, 1 / 256])]
)
def test_the_articles_slopes_are_others_below_3_heads(heads: int, theirs: list[float], right: list[float]) -> None:
    """Where its recursion ends, the slopes are not the published ones."""
    assert article_alibi_slopes(heads) == theirs
    assert alibi_slopes(heads).tolist() == right


@pytest.mark.parametrize(("heads", "first"), [(8, 1 / 2), (16, 2**-0.5)])
def test_slopes_for_8_heads_start_at_a_half(heads: int, first: float) -> None:
    """2^(-1/2) starts the list for 16 heads."""
    slopes = alibi_slopes(heads, dtype=torch.float64)
    assert slopes[0].item() == pytest.approx(first, rel=1e-15)
    assert slopes[-1].item() == 1 / 256


# --- DeBERTa: shapes and scale --------------------------------------------------------------------------------------


def deberta(heads: int, width: int, *parts: str) -> relpos.Disentangled:
    """In float64, 8 buckets of 20, so 16 rows, with random tables."""
    scheme = relpos.Disentangled(heads, width, num_buckets=8, max_distance=20, parts=parts or ("c2p", "p2c")).double()
    for table in scheme.parameters():
        nn.init.normal_(table)
    return scheme


@pytest.mark.parametrize("length", [5, 9])
def test_the_articles_position_vectors_belong_to_absolute_positions(length: int) -> None:
    """Vectors [H, T, d] know no distance: shifted by one token, the same words score differently; ours do not."""
    scheme = deberta(2, 4)
    assert scheme.c2p_table is not None
    assert scheme.p2c_table is not None
    query, key = torch.randn(2, 2, length, 4, dtype=torch.float64).unbind()

    def theirs(start: int) -> Tensor:
        rows = slice(start, start + length)
        return article_disentangled_scores(query, key, scheme.p2c_table[:, rows], scheme.c2p_table[:, rows], 4)

    def right(start: int) -> Tensor:
        at = torch.arange(start, start + length)
        positions = relpos.Positions.explicit(at, at)
        return relpos.attention_weights(query[None], key[None], key[None], scheme, positions=positions)

    assert (theirs(1) - theirs(0)).abs().max() > 0.1
    torch.testing.assert_close(right(1), right(0), rtol=0.0, atol=1e-12)
    # A table of relative rows does not even fit: 16 rows are not as many as tokens.
    with pytest.raises(RuntimeError, match="size of tensor"):
        article_disentangled_scores(query, key, scheme.p2c_table, scheme.c2p_table, 4)


@pytest.mark.parametrize(
    ("parts", "terms"), [(("c2p", "p2c"), 3), (("c2p",), 2), (("p2c",), 2), (("c2p", "p2c", "p2p"), 4)]
)
@pytest.mark.parametrize("width", [64, 16])
def test_debertas_scale_counts_its_terms(width: int, parts: tuple[str, ...], terms: int) -> None:
    """1 / sqrt(d) is sqrt(3) = 1.7321 times too large for the released models' two terms."""
    scheme = relpos.Disentangled(2, width, parts=parts)
    assert scheme.scale == pytest.approx(1 / math.sqrt(width * terms))
    assert (1 / math.sqrt(width)) / scheme.scale == pytest.approx(math.sqrt(terms))


def test_position_to_content_reads_the_same_row() -> None:
    """The paper's delta(j, i) is another row; released weights need that of content to position."""
    scheme = deberta(2, 4)
    terms = scheme.terms(relpos.Positions.arange(1))
    assert [type(term) for term in terms] == [QueryDistance, KeyDistance]
    distance = torch.arange(-30, 31)
    to_position, to_content = (term.row(distance) for term in terms if isinstance(term, QueryDistance | KeyDistance))
    assert torch.equal(to_position, to_content)
    assert not torch.equal(to_position, to_position.flip(0))


def test_the_position_to_position_term_is_an_option() -> None:
    """The article lists it and leaves it out, as the released models do; asked for, it is a bias of the distance."""
    with_it, without = deberta(2, 4, "c2p", "p2c", "p2p"), deberta(2, 4)
    assert len(with_it.terms(relpos.Positions.arange(1))) == len(without.terms(relpos.Positions.arange(1))) + 1
    alone = deberta(2, 4, "p2p")
    assert alone.c2p_table is not None
    assert alone.p2c_table is not None
    row = 8 - 2  # span minus distance, two tokens ahead
    expected = (alone.c2p_table[:, row] * alone.p2c_table[:, row]).sum(-1) / math.sqrt(2 * 4)
    torch.testing.assert_close(alone.bias(6)[:, 1, 3], expected)


# --- The sinusoidal snippet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [3, 7, 129])
def test_the_articles_sinusoids_fail_for_odd_widths(width: int) -> None:
    """From 3 on: one cosine too many for its columns."""
    with pytest.raises(RuntimeError):
        article_sinusoidal(4, width)
    assert sinusoidal_table(torch.arange(4), width).shape == (4, width)


@pytest.mark.parametrize("width", [2, 8, 64])
def test_the_articles_sinusoids_are_right_for_even_widths(width: int) -> None:
    """On the CPU, for lengths at which its float32 angles are good enough."""
    torch.testing.assert_close(
        article_sinusoidal(20, width), sinusoidal_table(torch.arange(20), width), rtol=0, atol=2e-5
    )


def test_half_of_the_articles_sinusoids_stay_on_the_cpu() -> None:
    """Any other device raises, here the meta device; ours follows the positions."""
    with pytest.raises(RuntimeError, match=r"device|meta"):
        article_sinusoidal(4, 8, device="meta")
    assert sinusoidal_table(torch.arange(4, device="meta"), 8).device.type == "meta"
    assert relpos.Sinusoidal(8).embed(torch.zeros(1, 4, 8, device="meta")).device.type == "meta"


# --- "ALiBi extrapolates 2x to 10x" ---------------------------------------------------------------------------------

WINDOWS = [10, 19, 37, 74, 148, 295, 590, 1179]  # ln(100) / slope, rounded up


@pytest.mark.parametrize("length", [2048, 8192])
def test_alibi_is_a_window_that_does_not_grow(length: int) -> None:
    """Without content, each of 8 heads gives 99% of its weight to as many keys at 2048 tokens as at 8192."""
    query, key = torch.zeros(1, 8, 1, 4, dtype=torch.float64), torch.zeros(1, 8, length, 4, dtype=torch.float64)
    weights = relpos.attention_weights(query, key, key, relpos.ALiBi(8), is_causal=True)[0, :, 0]
    widths = (weights.flip(-1).cumsum(-1) < 0.99).sum(-1) + 1
    expected = WINDOWS if length > 2048 else [*WINDOWS[:-1], 1171]  # the flattest head has not seen its window yet
    assert widths.tolist() == expected


@pytest.mark.parametrize(
    ("slope", "by_length", "by_position"),
    [
        (1 / 16, [0.2140, 0.0835, 0.0444, 0.0345], [0.0676, 0.0324, 0.0312, 0.0312]),
        (1 / 2, [0.3302, 0.2663, 0.2503, 0.2463], [0.2451, 0.2449, 0.2449, 0.2449]),
    ],
)
def test_the_average_falls_with_length_although_no_position_gains(
    slope: float, by_length: list[float], by_position: list[float]
) -> None:
    """Averaging noise with ALiBi's weights: the mean error falls with every length, the error at a position stops.

    The variance of an average of independent values is the sum of its squared weights. Perplexity by length falls in
    the same way: longer windows only hold fewer tokens with a short past.
    """
    variance = weights_of(relpos.ALiBi(1, slopes=[slope]), 1024)[0].square().sum(-1)
    lengths = (16, 64, 256, 1024)
    assert [variance[:length].mean().item() for length in lengths] == pytest.approx(by_length, abs=PRINTED)
    assert [variance[length - 1].item() for length in lengths] == pytest.approx(by_position, abs=PRINTED)
    assert variance[-1].item() == pytest.approx(math.tanh(slope / 2), rel=1e-6)  # its limit, reached within a window


# --- "RoPE has better extrapolation" --------------------------------------------------------------------------------


def test_rope_meets_angles_that_it_never_saw() -> None:
    """Head width 32, trained at 64 tokens: 11 of 16 pairs never made a full turn; at 1024, all of them turn further."""
    (term,) = relpos.Rotary(32).terms(relpos.Positions.arange(1))
    assert isinstance(term, Rotation)
    largest = {length: (length - 1) * term.inv_freq for length in (64, 256, 1024)}
    unfinished = {length: int((angle < 2 * math.pi).sum()) for length, angle in largest.items()}
    assert unfinished == {64: 11, 256: 9, 1024: 7}
    new = (largest[64] < 2 * math.pi) & (largest[1024] > largest[64])
    assert int(new.sum()) == 11


@pytest.mark.parametrize(("length", "rope", "nope"), [(128, 0.2634, 0.5), (256, 0.4552, 0.75), (1024, 0.6937, 0.9375)])
def test_rope_keeps_its_attention_on_unseen_distances(length: int, rope: float, nope: float) -> None:
    """Equal content, trained at 64: most of RoPE's weight lies past any trained distance, next to none of ALiBi's."""

    def past_64(scheme: relpos.Scheme | None) -> Tensor:
        query, key = torch.ones(1, 4, 1, 32, dtype=torch.float64), torch.ones(1, 4, length, 32, dtype=torch.float64)
        weights = relpos.attention_weights(query, key, key, scheme, is_causal=True)
        return weights[0, :, 0, : length - 64].sum(-1)

    assert past_64(relpos.Rotary(32))[0].item() == pytest.approx(rope, abs=PRINTED)
    assert past_64(None)[0].item() == pytest.approx(nope, abs=PRINTED)
    near, far = (torch.exp(-past * alibi_slopes(4).double()) for past in (64, length))
    torch.testing.assert_close(past_64(relpos.ALiBi(4)), (near - far) / (1 - far))  # below exp(-64 slope) at any length


def test_frequency_scalings_are_refused_and_not_ignored() -> None:
    """This version has none: asking for one says so."""
    with pytest.raises(ValueError, match="scaling"):
        relpos.make("rope", head_dim=32, scaling="ntk")


# --- "Raise max_distance, or use log buckets" -----------------------------------------------------------------------


@pytest.mark.parametrize(("bidirectional", "last", "widths"), [(True, 91, [4, 4, 7, 9, 14, 18, 27]), (False, 113, [])])
def test_t5s_buckets_are_logarithmic_already(bidirectional: bool, last: int, widths: list[int]) -> None:
    """Widths 4, 4, 7, 9, 14, 18, 27 after the exact range of 8; from 91 (one-way 113) on, one bucket."""
    past = torch.arange(0, 5000)
    bucket = ours(-past, bidirectional)
    shared = bucket == bucket.max()
    assert int(shared.nonzero()[0]) == last
    assert shared[last:].all()
    if widths:
        assert torch.bincount(bucket)[8:15].tolist() == widths


@pytest.mark.parametrize(
    ("bidirectional", "changed", "first", "farthest"), [(True, 146, 12, 165), (False, 195, 19, 215)]
)
def test_raising_max_distance_moves_trained_rows(bidirectional: bool, changed: int, first: int, farthest: int) -> None:
    """From 128 to 256: 146 distances into the past between 12 and 165 read another row (one-way 195, 19 to 215)."""
    past = torch.arange(0, 2000)
    moved = (ours(-past, bidirectional) != ours(-past, bidirectional, max_distance=256)).nonzero().flatten()
    assert (len(moved), moved.min().item(), moved.max().item()) == (changed, first, farthest)


def test_a_trained_bias_changes_inside_the_trained_length() -> None:
    """The same table, read with 128 and with 256: at 64 tokens back row 14 becomes row 12, at 100 row 15 row 13."""
    trained, raised = relpos.T5Bias(1), relpos.T5Bias(1, max_distance=256)
    with torch.no_grad():
        trained.table[0] = torch.arange(32)
    raised.load_state_dict(trained.state_dict())
    before, after = trained.bias(1, 301)[0, 0].flip(0), raised.bias(1, 301)[0, 0].flip(0)
    assert [(before[past].item(), after[past].item()) for past in (8, 12, 64, 100)] == [
        (8, 8),
        (9, 8),
        (14, 12),
        (15, 13),
    ]
    # What it buys: distances that shared the last row before.
    assert before[100] == before[300]
    assert after[100] != after[300]


# --- "Two families, additive and multiplicative" --------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "length"), [(64, 9), (3, 9), (3, 40)])
def test_the_second_articles_module_is_shaw_bias(limit: int, length: int) -> None:
    """That one is right, and so are its distances: the same numbers, with the table transposed."""
    theirs = ArticleRelativePositionBias(limit, 8)
    scheme = relpos.ShawBias(8, limit)
    with torch.no_grad():
        scheme.table.copy_(theirs.relative_bias.weight.T)
    assert torch.equal(scheme.bias(length), theirs(length))


@pytest.mark.parametrize("method", [1, 2, 3])
def test_the_multiplicative_family_needs_content(method: int) -> None:
    """Huang's methods 1 to 3 multiply the product: no product, no position. Additive schemes act all the same."""
    multiplicative, additive = relpos.Huang(2, 8, 4, method=method), relpos.ShawBias(2, 4)
    key, content = torch.randn(2, 1, 2, 6, 8).unbind()
    silent = torch.zeros(1, 2, 6, 8)
    query = torch.randn(1, 2, 6, 8)
    plain = relpos.attention_weights(query, key, content)
    # Gains of 1, its start, are attention without positions.
    torch.testing.assert_close(relpos.attention_weights(query, key, content, multiplicative), plain)
    for scheme in (multiplicative, additive):
        nn.init.normal_(scheme.table)
    uniform = torch.full((1, 2, 6, 6), 1 / 6)
    torch.testing.assert_close(relpos.attention_weights(silent, key, content, multiplicative), uniform)
    assert (relpos.attention_weights(silent, key, content, additive) - uniform).abs().max() > 0.05
    assert (relpos.attention_weights(query, key, content, multiplicative) - plain).abs().max() > 0.05


@pytest.mark.parametrize("length", [6, 11])
def test_huangs_methods_written_out(length: int) -> None:
    """A number per distance (1: its size, 2: with its sign), a vector channel by channel (3), an additive mix (4)."""
    query, key, value = torch.randn(3, 1, 2, length, 8, dtype=torch.float64).unbind()
    distance = torch.arange(length) - torch.arange(length)[:, None]
    clipped = distance.clamp(-4, 4) + 4
    product = query @ key.transpose(-1, -2)
    content: dict[int, Callable[[Tensor], Tensor]] = {
        1: lambda table: product * table[:, distance.abs().clamp(max=4)],
        2: lambda table: product * table[:, clipped],
        3: lambda table: torch.einsum("bhic,bhjc,hijc->bhij", query, key, table[:, clipped]),
        4: lambda table: (
            product
            + torch.einsum("bhic,hijc->bhij", query, table[:, clipped])
            + torch.einsum("bhjc,hijc->bhij", key, table[:, clipped])
        ),
    }
    for method, scores in content.items():
        scheme = relpos.Huang(2, 8, 4, method=method).double()
        nn.init.normal_(scheme.table)
        expected = (scores(scheme.table) / math.sqrt(8)).softmax(-1)
        torch.testing.assert_close(relpos.attention_weights(query, key, value, scheme), expected)


# --- Shaw has a value table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("values", [True, False])
def test_shaw_has_vectors_on_keys_and_on_values(values: bool, length: int) -> None:
    """The article's formula has a_K only; the paper adds a_V to the values, and `values=False` leaves it out."""
    scheme = relpos.Shaw(2, 8, 3, values=values).double()
    for table in scheme.parameters():
        nn.init.normal_(table)
    query, key, value = torch.randn(3, 1, 2, length, 8, dtype=torch.float64).unbind()
    row = (torch.arange(length) - torch.arange(length)[:, None]).clamp(-3, 3) + 3
    edges = scheme.key_table[row]
    scores = (query[:, :, :, None] * (key[:, :, None] + edges)).sum(-1) / math.sqrt(8)
    keys_only = scores.softmax(-1) @ value
    got = relpos.attention(query, key, value, scheme)
    if scheme.value_table is None:
        torch.testing.assert_close(got, keys_only)
        return
    torch.testing.assert_close(got, keys_only + (scores.softmax(-1)[..., None] * scheme.value_table[row]).sum(-2))
    assert (got - keys_only).abs().max() > 0.1


# --- Claims about behaviour, and the six traps ----------------------------------------------------------------------


@pytest.mark.parametrize("max_len", [8, 512])
def test_absolute_positions_end_with_their_table(max_len: int) -> None:
    """True: the article's table raises an IndexError that names nothing, ours says which position and which size."""
    with pytest.raises(IndexError):
        ArticleLearnedAbsolute(4, max_len)(torch.zeros(1, max_len + 1, 4))
    with pytest.raises(ValueError, match=rf"position {max_len} for a table of {max_len} rows"):
        relpos.LearnedAbsolute(4, max_len).embed(torch.zeros(1, max_len + 1, 4))


@pytest.mark.parametrize("name", ["shaw_bias", "shaw", "huang", "t5", "alibi", "deberta", "rope"])
@pytest.mark.parametrize("shift", [2, 1000])
def test_a_shift_of_the_sentence_changes_nothing_for_a_relative_scheme(name: str, shift: int) -> None:
    """True, and false for absolute ones: words two places further on attend as before."""
    needed: dict[str, dict[str, object]] = {
        "shaw_bias": {"num_heads": 2, "max_distance": 3},
        "shaw": {"num_heads": 2, "head_dim": 4, "max_distance": 3},
        "huang": {"num_heads": 2, "head_dim": 4, "max_distance": 3, "method": 4},
        "t5": {"num_heads": 2},
        "alibi": {"num_heads": 2},
        "deberta": {"num_heads": 2, "head_dim": 4},
        "rope": {"head_dim": 4},
    }
    scheme = relpos.make(name, **needed[name]).double()
    for table in scheme.parameters():
        nn.init.normal_(table)
    layer = relpos.RelativeAttention(8, 2, scheme).double()
    x, at = torch.randn(1, 6, 8, dtype=torch.float64), torch.arange(6)
    moved = relpos.Positions.explicit(at + shift, at + shift)
    torch.testing.assert_close(layer(x, positions=moved), layer(x), rtol=0.0, atol=1e-10)
    sinusoidal = relpos.Sinusoidal(8)
    assert (sinusoidal.embed(x, moved) - sinusoidal.embed(x)).abs().max() > 0.1


def test_alibis_heads_look_at_different_ranges() -> None:
    """True: mean distance looked back over 1024 tokens, 1.5 tokens for the steepest of 8 heads and 237 for the last."""
    query, key = torch.zeros(1, 8, 1, 4), torch.zeros(1, 8, 1024, 4)
    back = torch.arange(1023.0, -1.0, -1.0)
    ranges = (relpos.attention_weights(query, key, key, relpos.ALiBi(8), is_causal=True)[0, :, 0] * back).sum(-1)
    assert ranges.tolist() == pytest.approx([1.54, 3.52, 7.51, 15.5, 31.5, 63.5, 127.0, 236.6], rel=5e-3)
    alike = weights_of(relpos.ALiBi(8, slopes=[0.25] * 8), 64, heads=8)  # the trap: one slope for all
    torch.testing.assert_close(alike, alike[:1].expand_as(alike))


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 64)])
def test_a_decoder_with_two_way_buckets_wastes_half_of_its_table(num_buckets: int, max_distance: int) -> None:
    """The trap of mixing them up: a causal model reaches half of the rows, and tells apart half as many distances."""
    past = -torch.arange(4 * max_distance)
    assert len(ours(past, True, num_buckets, max_distance).unique()) == num_buckets // 2
    assert len(ours(past, False, num_buckets, max_distance).unique()) == num_buckets
    assert (ours(-past, False, num_buckets, max_distance) == 0).all()  # one-way, all of the future is distance 0


@pytest.mark.parametrize("mode", ["t5", "alibi", "shaw_bias"])
def test_the_bias_moves_with_its_module(mode: str) -> None:
    """The trap of a bias left on another device: the article's module makes its distances on the CPU."""
    with pytest.raises(RuntimeError, match="device"):
        article_alibi_bias(alibi_slopes(4).to("meta"), 4)  # its buffer moves, its `torch.arange(t)` does not
    options: dict[str, object] = {"max_distance": 3} if mode == "shaw_bias" else {}
    right = relpos.RelativeBias(4, mode=mode, **options).to("meta")
    assert right(4).device.type == "meta"


@pytest.mark.parametrize("scheme", [relpos.LearnedAbsolute(8, 16), relpos.Sinusoidal(8)])
def test_an_absolute_scheme_is_not_taken_for_a_relative_one(scheme: relpos.Scheme) -> None:
    """The trap of positions given twice begins with not knowing where they are injected: attention refuses these."""
    query = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match="embed"):
        relpos.attention(query, query, query, scheme)
    with pytest.raises(ValueError, match="embed"):
        relpos.RelativeAttention(8, 2, [relpos.ALiBi(2), scheme])
    assert (scheme.encodes, scheme.injects_at) == ("position", "input")
