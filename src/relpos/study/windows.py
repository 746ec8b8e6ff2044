"""Which token is scored in which window.

A text of `num_tokens` tokens has `num_tokens - 1` input/target pairs. Both rules below score every pair exactly once,
so that losses at different window lengths are means over the same tokens and may be compared.
"""

from dataclasses import dataclass

from relpos import errors


@dataclass(frozen=True)
class Window:
    """Inputs `x[start : start + length]`, targets one further; the targets from index `first_scored` on count."""

    start: int
    length: int
    first_scored: int = 0

    @property
    def num_scored(self) -> int:
        """How many targets count."""
        return self.length - self.first_scored


def non_overlapping(num_tokens: int, window: int) -> list[Window]:
    """Windows end to end; the last one is shorter where `window` does not divide the pairs.

    >>> [w.length for w in non_overlapping(40, 16)]
    [16, 16, 7]
    """
    pairs = _pairs("non_overlapping", num_tokens, window)
    return [Window(start, min(window, pairs - start)) for start in range(0, pairs, window)]


def sliding(num_tokens: int, window: int, stride: int) -> list[Window]:
    """Windows `stride` apart: the first scores all its targets, a later one only the targets no window scored before.

    Every target but those of the first window so has at least `window - stride` tokens of context before it.

    >>> [(w.start, w.num_scored) for w in sliding(40, 16, 4)]
    [(0, 16), (4, 4), (8, 4), (12, 4), (16, 4), (20, 4), (23, 3)]
    """
    pairs = _pairs("sliding", num_tokens, window)
    if not 1 <= stride <= window:
        raise errors.value("sliding(stride=...)", str(stride), f"1 to the window, {window}", "lower the stride")
    windows = [Window(0, min(window, pairs))]
    done = windows[0].length
    while done < pairs:
        end = min(done + stride, pairs)
        windows.append(Window(end - window, window, first_scored=done - (end - window)))
        done = end
    return windows


def distance_bins(window: int) -> tuple[int, ...]:
    """Where the bins of distances into the past begin: 0, 1, 2, 4, 8 ... below `window`; each ends before the next.

    >>> distance_bins(64)
    (0, 1, 2, 4, 8, 16, 32)
    """
    return (0, *(1 << power for power in range((window - 1).bit_length())))


def _pairs(call: str, num_tokens: int, window: int) -> int:
    if num_tokens < 2:
        raise errors.value(
            f"{call}(num_tokens=...)", str(num_tokens), "2 or more (an input and its target)", "give a longer text"
        )
    if window < 1:
        raise errors.value(f"{call}(window=...)", str(window), "1 or more", "raise the window")
    return num_tokens - 1
