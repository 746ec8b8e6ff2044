"""Verdicts and words follow from the numbers: each claim holds for some of these studies and fails for others."""

import pytest
from altered import BASE, study

from relpos.study.page.claims import RULES, Claim, judge
from relpos.study.page.numbers import Numbers


def claim(says: str, found: Numbers) -> Claim:
    (chosen,) = (each for each in judge(found) if each.says.startswith(says))
    return chosen


def test_the_base_is_judged_as_the_default_study_was() -> None:
    verdicts = {each.says: each.verdict for each in judge(Numbers.of(study()))}
    held = {says for says, verdict in verdicts.items() if verdict == "held"}
    assert {says.split()[0] + " " + says.split()[1] for says in held} == {
        "A learned",
        "Relative positions",
        "Distances may",
        "ALiBi keeps",
        "Slopes in",
        "In very",
        "Decoupled terms",
    }
    assert set(verdicts.values()) == {"held", "did not hold"}
    assert len(verdicts) == len(RULES) == 14


# A beginning of the claim, changes to the base, the verdict, and words that must stand in what was measured.
CASES = [
    ("A learned table", {}, "held", "6.00 at 16, undefined at 128."),
    ("A learned table", {"learned": (6.0, 7.0, 7.5)}, "did not hold", "6.00 at 16, 7.50 at 128."),
    ("A learned table", {"learned": (6.0, 7.0, None)}, "did not hold", "undefined at 128"),
    ("Sinusoids", {}, "did not hold", "Worse than no positions from 32 bytes on."),
    ("Sinusoids", {"sinusoidal": (6.5, 8.9, 27.0)}, "held", "Worse than no positions at 128 bytes."),
    ("Sinusoids", {"sinusoidal": (6.5, 6.6, 6.7)}, "held", "Better than no positions at every longer length."),
    ("Relative positions generalise", {}, "held", "At 16 bytes the worst relative scheme is alibi 5.80, the best"),
    ("Relative positions generalise", {"alibi": (6.1, 6.0, 6.0)}, "did not hold", "alibi 6.10"),
    (
        "Relative positions generalise",
        {"rope": (5.0, 6.0, 28.0)},
        "did not hold",
        "the worst relative scheme is rope 28.00",
    ),
    ("Relative positions support", {}, "did not hold", "rope 3.20 times"),
    ("Relative positions support", {"rope": (5.0, 5.0, 5.1)}, "held", "rope 1.02 times"),
    ("Distances may be clipped", {}, "held", "Clipped at 8: 4.50 at 16, 4.30 at 128."),
    ("Distances may be clipped", {"shaw_bias": (4.5, 4.8, 4.5)}, "did not hold", "4.50 at 128"),
    ("Without the factor", {}, "did not hold", "4.60 at 16, rank 2 of 9; no positions 8.00 at 16."),
    ("Without the factor", {"t5": (8.5, 8.5, 8.5)}, "held", "8.50 at 16, rank 8 of 9"),
    ("Past max_distance", {}, "did not hold", "4.60 at 16, 4.40 at 128."),
    ("Past max_distance", {"t5": (4.6, 4.7, 5.5)}, "held", "5.50 at 128"),
    ("ALiBi keeps", {}, "held", "5.80 at 16, 5.60 at 128."),
    ("ALiBi keeps", {"alibi": (5.8, 6.2, 5.6)}, "did not hold", "5.80 at 16"),
    ("ALiBi adds", {}, "did not hold", "as printed 9.00 at 16, with the published one 5.80 at 16; no positions 8.00"),
    ("ALiBi adds", {"alibi_reversed": (5.0, 5.0, 5.0)}, "held", "as printed 5.00 at 16"),
    ("Decoupled terms", {}, "held", "4.50 to 4.70 over all lengths"),
    ("Decoupled terms", {"deberta": (4.7, 4.6, 9.4)}, "did not hold", "4.60 to 9.40"),
    ("RoPE has", {}, "did not hold", "3.20 times"),
    ("RoPE has", {"rope": (5.0, 4.0, 3.0)}, "held", "0.60 times"),
]


@pytest.mark.parametrize(("says", "changes", "verdict", "words"), CASES)
def test_other_numbers_give_other_words(
    says: str, changes: dict[str, tuple[float | None, ...]], verdict: str, words: str
) -> None:
    found = claim(says, Numbers.of(study(changes)))
    assert (found.verdict, words in found.measured) == (verdict, True), found


def test_claims_about_attention_and_time() -> None:
    base = Numbers.of(study())
    assert claim("Slopes", base).measured == "In windows of 16 bytes its heads look back 1.0 and 5.5 bytes on average."
    alike = Numbers.of(study(alibi={"reach": ((3, 3), (3, 3))}))
    assert claim("Slopes", alike).verdict == "did not hold"
    assert claim("In very long", base).measured == (
        "In windows of 128 bytes 100.0% of its attention stays within 16 bytes."
    )
    far = claim("In very long", Numbers.of(study(alibi={"reach": ((1, 3), (1, 6))})))
    assert (far.verdict, "50.0%" in far.measured) == ("did not hold", True)
    assert claim("The multiplicative", base).verdict == "did not hold"
    slow = claim("The multiplicative", Numbers.of(study(rope={"seconds": 1.1})))
    assert (slow.verdict, slow.measured) == ("held", "rope 275 ms a step and shaw_bias 250 ms a step.")
    assert claim("The multiplicative", Numbers.of(study(rope={"seconds": 1.019}))).verdict == "did not hold"


def test_whether_a_longer_window_helps_is_read_from_the_sliding_scores() -> None:
    better = Numbers.of(study(alibi={"sliding": (5.8, 5.7, 5.0)}))
    same = Numbers.of(study(alibi={"sliding": (5.8, 5.8, 5.79)}))
    assert "5.80 and 5.00: a longer window helps." in claim("ALiBi keeps", better).measured
    assert "5.80 and 5.79: a longer window gains nothing." in claim("ALiBi keeps", same).measured


@pytest.mark.parametrize("scheme", list(BASE))
def test_what_is_not_in_the_run_is_not_judged(scheme: str) -> None:
    found = judge(Numbers.of(study({scheme: None})))
    needing = [rule.says for rule in RULES if scheme in rule.needs]
    for each in found:
        assert (each.verdict == "not in this run") == (each.says in needing), each
        if each.says in needing:
            assert scheme in each.measured


def test_without_any_absolute_or_relative_scheme() -> None:
    only = dict.fromkeys(BASE) | {"nope": BASE["nope"], "t5": BASE["t5"]}
    verdicts = {each.says: each.verdict for each in judge(Numbers.of(study(only)))}
    assert verdicts["Relative positions generalise better than absolute ones."] == "not in this run"
    assert verdicts["Without the factor sqrt(3/d) on its bias, T5 does not train."] == "did not hold"


def test_seeds_that_disagree_are_counted_and_ranges_said() -> None:
    seeds = ({}, {"t5": (8.5, 8.5, 8.5)}, {})
    found = claim("Without the factor", Numbers.of(study(seeds=seeds)))
    assert found.verdict == "held in some seeds"
    assert "5.90 (4.60 to 8.50) at 16" in found.measured
    assert found.measured.endswith("Held in 1 of 3 seeds.")
    assert claim("Without the factor", Numbers.of(study(seeds=({}, {})))).verdict == "did not hold"
