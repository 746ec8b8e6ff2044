"""Scoring the held-out tokens with a trained model, at one window length at a time."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from relpos.study.model import ByteLM
from relpos.study.results import LossByPosition, Rule, Score
from relpos.study.windows import Window, non_overlapping, sliding

# Dense attention needs batch * heads * window^2 numbers at a time; more tokens per pass do not make it faster.
TOKENS_PER_PASS = 2048

# A span of a segment: where its inputs start, and how many they are.
Span = tuple[int, int]


def score_length(model: ByteLM, segments: Int64[Tensor, "K N1"], window: int, bin_width: int) -> tuple[Score, Score]:
    """Score every target of every segment twice: in windows end to end, and in windows a quarter apart.

    `bin_width` is the number of neighbouring positions that the loss by position averages. Where the model's
    positions end before the window does, both scores are undefined and say why.
    """
    num_tokens = segments.shape[1]
    plans: tuple[tuple[Rule, int, list[Window]], ...] = (
        ("non_overlapping", window, non_overlapping(num_tokens, window)),
        ("sliding", window // 4, sliding(num_tokens, window, window // 4)),
    )
    limit = model.max_length()
    reason = None
    passes: dict[Span, Float[Tensor, "K L"]] = {}
    if limit is not None and window > limit:
        reason = f"position {limit} of a window of {window} lies past the table's {limit} rows"
    else:
        passes = span_losses(model, segments, {(each.start, each.length) for _, _, plan in plans for each in plan})
    scores: list[Score] = []
    for rule, step, windows in plans:
        losses = token_losses(passes, windows, len(segments), num_tokens - 1) if reason is None else None
        scores.append(
            Score(
                rule=rule,
                window=window,
                stride=step,
                windows=len(windows) * len(segments),
                tokens=sum(each.num_scored for each in windows) * len(segments),
                loss=None if losses is None else float(losses.mean()),
                undefined=reason,
                by_position=(
                    loss_by_position(losses, windows, bin_width)
                    if losses is not None and rule == "non_overlapping"
                    else None
                ),
            )
        )
    return scores[0], scores[1]


@torch.no_grad()
def span_losses(
    model: ByteLM, segments: Int64[Tensor, "K N1"], spans: Collection[Span]
) -> dict[Span, Float[Tensor, "K L"]]:
    """The loss in nats of every target of every span `(start, length)`, for all segments.

    Windows end to end are also sliding windows, so both rules read the same passes and nothing is computed twice.
    """
    model.eval()
    losses: dict[Span, Tensor] = {}
    for length, group in groupby(sorted(spans, key=lambda span: span[::-1]), key=lambda span: span[1]):
        jobs = list(group)
        size = max(1, TOKENS_PER_PASS // (length * len(segments)))
        for first in range(0, len(jobs), size):
            chosen = jobs[first : first + size]
            tokens = torch.cat([segments[:, start : start + length + 1] for start, _ in chosen])
            logits = model(tokens[:, :-1])
            found = cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
            losses |= zip(chosen, found.split(len(segments)), strict=True)
    return losses


def token_losses(
    passes: Mapping[Span, Float[Tensor, "K L"]], windows: Sequence[Window], segments: int, pairs: int
) -> Float64[Tensor, "K N"]:
    """The loss of every target, taken from the one window that scores it: entry `[k, t]` is token `t + 1`'s."""
    losses = torch.zeros(segments, pairs, dtype=torch.float64)
    scored = torch.zeros(pairs, dtype=torch.int64)
    for window in windows:
        span = slice(window.start + window.first_scored, window.start + window.length)
        losses[:, span] = passes[window.start, window.length][:, window.first_scored :].double()
        scored[span] += 1
    if not bool((scored == 1).all()):
        raise RuntimeError("relpos study: the windows score some held-out token twice or never.")
    return losses


def loss_by_position(losses: Float64[Tensor, "K N"], windows: Sequence[Window], bin_width: int) -> LossByPosition:
    """The mean loss over bins of positions inside the window, for windows that score all their targets."""
    bins = -(-max(window.length for window in windows) // bin_width)
    total = torch.zeros(bins, dtype=torch.float64)
    count = torch.zeros(bins, dtype=torch.int64)
    for window in windows:
        index = torch.arange(window.length) // bin_width
        total.index_add_(0, index, losses[:, window.start : window.start + window.length].sum(0))
        count.index_add_(0, index, torch.full_like(index, len(losses)))
    return LossByPosition(bin_width, tuple(count.tolist()), tuple((total / count).tolist()))
