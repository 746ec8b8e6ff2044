"""Each input/target pair is scored exactly once, whatever the lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relpos.study.windows import Window, non_overlapping, sliding


def scored(windows: list[Window]) -> list[int]:
    """The indices of the pairs that the windows score, in order, repetitions included."""
    return [w.start + i for w in windows for i in range(w.first_scored, w.length)]


def test_case_l6_forty_tokens() -> None:
    end_to_end = non_overlapping(40, 16)
    assert [(w.start, w.length, w.first_scored) for w in end_to_end] == [(0, 16, 0), (16, 16, 0), (32, 7, 0)]
    assert scored(end_to_end) == list(range(39))

    strided = sliding(40, 16, 4)
    assert [w.num_scored for w in strided] == [16, 4, 4, 4, 4, 4, 3]
    assert [w.length for w in strided] == [16] * 7
    assert scored(strided) == list(range(39))


@given(st.integers(2, 300), st.integers(1, 70), st.data())
def test_every_pair_once(num_tokens: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    for windows in (non_overlapping(num_tokens, window), sliding(num_tokens, window, stride)):
        assert scored(windows) == list(range(num_tokens - 1))
        assert all(w.start >= 0 and w.start + w.length <= num_tokens - 1 and w.length <= window for w in windows)


@given(st.integers(2, 300), st.integers(1, 70), st.data())
def test_sliding_targets_have_context(num_tokens: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    assert all(w.first_scored >= window - stride for w in sliding(num_tokens, window, stride)[1:])


def test_windows_end_to_end_are_sliding_windows_too_where_the_window_divides_the_text() -> None:
    starts = {w.start for w in sliding(641, 128, 32)}
    assert {w.start for w in non_overlapping(641, 128)} <= starts


@pytest.mark.parametrize(("num_tokens", "window"), [(1, 4), (0, 4), (10, 0)])
def test_impossible_windows_are_refused(num_tokens: int, window: int) -> None:
    with pytest.raises(ValueError, match="What to do"):
        non_overlapping(num_tokens, window)


@pytest.mark.parametrize("stride", [0, 17])
def test_impossible_strides_are_refused(stride: int) -> None:
    with pytest.raises(ValueError, match="1 to the window, 16"):
        sliding(40, 16, stride)
