"""The scores against a slow oracle: one window and one target at a time, in float64 sums of Python numbers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from relpos.study import Recipe, TrialConfig
from relpos.study.evaluate import score_length, span_losses, token_losses
from relpos.study.model import ByteLM, build_model
from relpos.study.windows import non_overlapping, sliding

RECIPE = Recipe(size="tiny", length=16, multiples=(1, 2, 4))


def model_of(scheme: str, recipe: Recipe = RECIPE) -> ByteLM:
    return build_model(TrialConfig(scheme, 0, "", recipe)).eval()


def segments_of(count: int, pairs: int) -> Tensor:
    return torch.randint(256, (count, pairs + 1), generator=torch.Generator().manual_seed(1))


def loss_at(model: ByteLM, segment: Tensor, start: int, target: int) -> float:
    """The loss of token `target` for a model that sees the tokens from `start` to just before it."""
    with torch.no_grad():
        logits = model(segment[None, start:target])[0, -1]
    return float(-logits.double().log_softmax(-1)[segment[target]])


@pytest.mark.parametrize("scheme", ["rope", "alibi", "sinusoidal", "deberta"])
@pytest.mark.parametrize("window", [16, 32])
def test_scores_against_the_oracle(scheme: str, window: int) -> None:
    model, segments = model_of(scheme), segments_of(2, 64)
    end_to_end, strided = score_length(model, segments, window, bin_width=4)
    stride = window // 4

    expected = [
        [loss_at(model, segment, (target - 1) // window * window, target) for target in range(1, 65)]
        for segment in segments
    ]
    mean = math.fsum(math.fsum(row) for row in expected) / 128
    assert end_to_end.loss == pytest.approx(mean, abs=1e-5)
    assert end_to_end.perplexity == pytest.approx(math.exp(mean), rel=1e-5)
    assert (end_to_end.windows, end_to_end.tokens, end_to_end.stride) == (2 * 64 // window, 128, window)

    # A target after the first window is seen from the window whose end is the next multiple of the stride.
    first_seen = [max(0, math.ceil(target / stride) * stride - window) for target in range(1, 65)]
    slid = [loss_at(model, s, start, t) for s in segments for t, start in enumerate(first_seen, start=1)]
    assert strided.loss == pytest.approx(math.fsum(slid) / 128, abs=1e-5)
    assert (strided.windows, strided.tokens, strided.stride) == (2 * ((64 - window) // stride + 1), 128, stride)

    assert end_to_end.by_position is not None
    assert end_to_end.by_position.tokens == (128 * 4 // window,) * (window // 4)
    for index, loss in enumerate(end_to_end.by_position.loss):
        inside = [row[t] for row in expected for t in range(64) if t % window // 4 == index]
        assert loss == pytest.approx(math.fsum(inside) / len(inside), abs=1e-5)


def test_a_ragged_end_is_scored_as_well() -> None:
    model, segments = model_of("rope"), segments_of(1, 39)
    windows = non_overlapping(40, 16)
    passes = span_losses(model, segments, {(w.start, w.length) for w in windows})
    losses = token_losses(passes, windows, 1, 39)
    assert losses[0, 38] == pytest.approx(loss_at(model, segments[0], 32, 39), abs=1e-5)
    assert bool((losses > 0).all())


def test_windows_that_score_a_token_twice_are_an_error() -> None:
    model, segments = model_of("nope"), segments_of(1, 39)
    windows = sliding(40, 16, 4)
    passes = span_losses(model, segments, {(w.start, w.length) for w in windows})
    overlapping = [replace(window, first_scored=0) for window in windows]
    with pytest.raises(RuntimeError, match="twice or never"):
        token_losses(passes, overlapping, 1, 39)


def test_a_learned_table_is_undefined_beyond_its_end_and_says_why() -> None:
    model, segments = model_of("learned"), segments_of(2, 64)
    trained, _ = score_length(model, segments, 16, bin_width=4)
    assert trained.loss is not None
    for score in score_length(model, segments, 32, bin_width=4):
        assert score.loss is None
        assert score.perplexity is None
        assert score.by_position is None
        assert score.undefined == "position 16 of a window of 32 lies past the table's 16 rows"
        assert score.tokens == 128
