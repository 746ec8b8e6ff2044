"""The numbers of the report against sums written out here."""

import pytest
from altered import STARTS, study

from relpos.study.page.comparison import comparisons
from relpos.study.page.numbers import Numbers, even_shares


@pytest.mark.parametrize("window", [16, 128])
def test_a_head_that_looks_at_everything_alike(window: int) -> None:
    shares = [0.0] * len(STARTS[window])
    queries = range(window - window // 4, window)
    for query in queries:
        for key in range(query + 1):
            index = max(i for i, start in enumerate(STARTS[window]) if start <= query - key)
            shares[index] += 1 / (query + 1) / len(queries)
    assert even_shares(window, STARTS[window]) == pytest.approx(shares)
    assert sum(shares) == pytest.approx(1)


def test_the_common_part_of_two_lengths() -> None:
    found = Numbers.of(
        study(t5={"reach": ((1, 3), (1, 3))}, rope={"reach": ((1, 3), (1, 7))}, alibi={"reach": ((0, 1), (2, 3))})
    )
    for scheme, share in (("t5", 1.0), ("rope", 0.5), ("alibi", 0.0)):
        stat = found.same_distances(scheme)
        assert stat is not None
        assert stat.mean == pytest.approx(share)
    assert found.same_distances("learned") is None


def test_means_and_ranges() -> None:
    found = Numbers.of(study(seeds=({}, {"t5": (5.0, 4.5, 4.4)}), t5={"seconds": 2.0}))
    stat = found.perplexity("t5", 16)
    assert stat is not None
    assert (stat.mean, stat.low, stat.high) == pytest.approx((4.8, 4.6, 5.0))
    assert stat.text() == "4.80 (4.60 to 5.00)"
    step = found.step_seconds("t5")
    assert step is not None
    assert step.text(".0f", 1000) == "500"
    assert Numbers.of(study()).best_first()[:3] == ["shaw_bias", "t5", "deberta"]
    assert Numbers.of(study({"t5": (1.0, 1.0, 1.0)})).best_first()[0] == "t5"


def test_the_articles_tables_hold_what_the_run_has() -> None:
    first, second = comparisons(Numbers.of(study({"learned": None})))
    (extrapolation, (learned, sinusoidal, relative)), *_ = first.rows
    assert extrapolation == "extrapolation: perplexity at 16 and 128 bytes"
    assert learned.measured == ()
    assert sinusoidal.measured == (("sinusoidal", "6.50 → 27.00"),)
    assert relative.measured[0] == ("shaw_bias", "4.50 → 4.30")
    assert [scheme for scheme, _ in relative.measured] == ["shaw_bias", "t5", "deberta", "rope", "alibi"]
    cost = dict(second.rows)["cost: position parameters, ms a step, MiB a step"]
    assert cost[1].measured == (("rope", "64, 250 ms, 1.0 MiB"),)
    assert [scheme for scheme, _ in cost[0].measured] == ["shaw_bias", "t5", "deberta", "alibi"]
