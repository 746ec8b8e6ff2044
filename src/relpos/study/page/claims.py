"""What the two articles claim about behaviour, and by rule whether it held in a study.

Every claim is a `Rule`: what must be in the study, a question with a yes or no for one seed, and words made from the
numbers. The verdict is the seeds' answers; nothing here knows what any study found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from relpos.study.page.numbers import Numbers, Stat
from relpos.study.presets import REVERSED

Verdict = Literal["held", "did not hold", "held in some seeds", "not in this run"]

#: Perplexities whose ratio stays below this count as flat.
FLAT = 1.05


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict: `rule` says when it counts as held, `measured` what was found."""

    says: str
    source: str
    rule: str
    verdict: Verdict
    measured: str


@dataclass(frozen=True)
class Rule:
    """How one claim is judged. `holds` gets one seed; None where this study cannot say."""

    says: str
    source: str
    rule: str
    holds: Callable[[Numbers], bool | None]
    measured: Callable[[Numbers], str]
    needs: tuple[str, ...] = ()


def judge(numbers: Numbers) -> list[Claim]:
    """Every claim, with its verdict in this study."""
    return [_judge(rule, numbers) for rule in RULES]


def _judge(rule: Rule, numbers: Numbers) -> Claim:
    missing = [name for name in rule.needs if name not in numbers.by_scheme]
    if missing:
        return Claim(rule.says, rule.source, rule.rule, "not in this run", f"needs {', '.join(missing)}")
    answers = [rule.holds(seed) for seed in numbers.seeds()]
    if any(answer is None for answer in answers):
        return Claim(
            rule.says,
            rule.source,
            rule.rule,
            "not in this run",
            "the schemes or lengths that it needs are not in this run",
        )
    held = sum(map(bool, answers))
    measured = rule.measured(numbers)
    if 0 < held < len(answers):
        return Claim(
            rule.says,
            rule.source,
            rule.rule,
            "held in some seeds",
            f"{measured} Held in {held} of {len(answers)} seeds.",
        )
    return Claim(rule.says, rule.source, rule.rule, "held" if held else "did not hold", measured)


# Parts of rules.


def _at(numbers: Numbers, scheme: str, window: int) -> str:
    found = numbers.perplexity(scheme, window)
    return f"{'undefined' if found is None else found.text()} at {window:,}"


def _from_to(numbers: Numbers, scheme: str) -> str:
    return f"{_at(numbers, scheme, numbers.trained)}, {_at(numbers, scheme, numbers.longest)}"


def _below(first: Stat | None, second: Stat | None) -> bool | None:
    """Whether the first mean is lower; undefined counts as higher than anything defined."""
    if first is None and second is None:
        return None
    return second is None or (first is not None and first.mean < second.mean)


def _flat(numbers: Numbers, scheme: str) -> bool | None:
    """Whether no longer length is worse than the trained one by `FLAT`."""
    first = numbers.perplexity(scheme, numbers.trained)
    if first is None or not numbers.longer:
        return None
    later = [numbers.perplexity(scheme, window) for window in numbers.longer]
    return all(found is not None and found.mean <= FLAT * first.mean for found in later)


def _beside_nope(numbers: Numbers, scheme: str) -> str:
    """Where the scheme is better and where worse than no positions at all, in words."""
    better = [_below(numbers.perplexity(scheme, w), numbers.perplexity("nope", w)) for w in numbers.longer]
    if all(better):
        return "Better than no positions at every longer length."
    if not any(better):
        return f"Worse than no positions from {numbers.longer[0]:,} bytes on."
    worse = [f"{window:,}" for window, yes in zip(numbers.longer, better, strict=True) if not yes]
    return f"Worse than no positions at {_list(worse)} bytes."


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _times(ratio: float | None) -> str:
    return "undefined" if ratio is None else f"{ratio:.2f} times"


# The claims, in the order of the articles.


def _learned_ends(numbers: Numbers) -> bool | None:
    if not numbers.longer:
        return None
    return all(numbers.perplexity("learned", window) is None for window in numbers.longer)


def _sinusoids_extrapolate(numbers: Numbers) -> bool | None:
    if not numbers.longer:
        return None
    return _below(numbers.perplexity("sinusoidal", numbers.longer[0]), numbers.perplexity("nope", numbers.longer[0]))


def _worst_and_best(numbers: Numbers, window: int) -> tuple[str, str] | None:
    """The worst relative and the best absolute scheme at a length."""
    relative, absolute = numbers.relative(), numbers.absolute()
    if not relative or not absolute:
        return None

    def height(scheme: str) -> float:
        found = numbers.perplexity(scheme, window)
        return float("inf") if found is None else found.mean

    return max(relative, key=height), min(absolute, key=height)


def _relative_beat_absolute(numbers: Numbers) -> bool | None:
    answers = []
    for window in (numbers.trained, numbers.longest):
        pair = _worst_and_best(numbers, window)
        if pair is None:
            return None
        answers.append(_below(*(numbers.perplexity(scheme, window) for scheme in pair)))
    return all(answers)


def _say_relative_beat_absolute(numbers: Numbers) -> str:
    parts = []
    for window in dict.fromkeys((numbers.trained, numbers.longest)):
        pair = _worst_and_best(numbers, window)
        assert pair is not None
        worst, best = (f"{scheme} {_at(numbers, scheme, window).removesuffix(f' at {window:,}')}" for scheme in pair)
        parts.append(f"At {window:,} bytes the worst relative scheme is {worst}, the best absolute one {best}.")
    return " ".join(parts)


def _every_length_alike(numbers: Numbers) -> bool | None:
    answers = [_flat(numbers, scheme) for scheme in numbers.relative()]
    return None if not answers or None in answers else all(answers)


def _say_every_length_alike(numbers: Numbers) -> str:
    return f"From {numbers.trained:,} to {numbers.longest:,} bytes: " + "; ".join(
        f"{scheme} {_times(numbers.rise(scheme))}"
        for scheme in sorted(numbers.relative(), key=lambda s: numbers.rise(s) or 1e9)
    )


def _t5_needs_a_factor(numbers: Numbers) -> bool | None:
    return _below(numbers.perplexity("nope", numbers.trained), numbers.perplexity("t5", numbers.trained))


def _say_t5_needs_a_factor(numbers: Numbers) -> str:
    rank = numbers.best_first().index("t5") + 1
    return (
        f"Trained without it: {_at(numbers, 't5', numbers.trained)}, rank {rank} of {len(numbers.by_scheme)}; "
        f"no positions {_at(numbers, 'nope', numbers.trained)}."
    )


def _t5_collapses(numbers: Numbers) -> bool | None:
    flat = _flat(numbers, "t5")
    return None if flat is None else not flat


def _alibi_lengths(numbers: Numbers) -> list[int]:
    return [window for window in numbers.longer if 2 * numbers.trained <= window <= 10 * numbers.trained]


def _alibi_extrapolates(numbers: Numbers) -> bool | None:
    first = numbers.perplexity("alibi", numbers.trained)
    later = [numbers.perplexity("alibi", window) for window in _alibi_lengths(numbers)]
    if first is None or not later:
        return None
    return all(found is not None and found.mean <= FLAT * first.mean for found in later)


def _say_alibi_extrapolates(numbers: Numbers) -> str:
    last = _alibi_lengths(numbers)[-1]
    words = f"{_at(numbers, 'alibi', numbers.trained)}, {_at(numbers, 'alibi', last)}."
    first, far = (numbers.perplexity("alibi", window, "sliding") for window in (numbers.trained, last))
    if first is None or far is None:
        return words
    gain = "a longer window gains nothing" if far.mean >= 0.99 * first.mean else "a longer window helps"
    return f"{words} Where every byte has a past (sliding windows) {first.text()} and {far.text()}: {gain}."


def _printed_sign_is_right(numbers: Numbers) -> bool | None:
    return _below(numbers.perplexity(REVERSED, numbers.trained), numbers.perplexity("alibi", numbers.trained))


def _say_printed_sign(numbers: Numbers) -> str:
    beside = f"; no positions {_at(numbers, 'nope', numbers.trained)}" if "nope" in numbers.by_scheme else ""
    return (
        f"With the sign as printed {_at(numbers, REVERSED, numbers.trained)}, with the published one "
        f"{_at(numbers, 'alibi', numbers.trained)}{beside}."
    )


def _heads_differ(numbers: Numbers) -> bool | None:
    reach = numbers.head_reach("alibi")
    return None if reach is None else max(reach) >= 2 * min(reach)


def _say_heads_differ(numbers: Numbers) -> str:
    reach = numbers.head_reach("alibi") or []
    window = numbers.attended("alibi")[0].window
    return (
        f"In windows of {window:,} bytes its heads look back {_list([f'{far:.1f}' for far in reach])} bytes on average."
    )


def _alibi_stays_near(numbers: Numbers) -> bool | None:
    found = numbers.near_share("alibi")
    return None if found is None else found[1].mean >= 0.9


def _say_alibi_stays_near(numbers: Numbers) -> str:
    found = numbers.near_share("alibi")
    assert found is not None
    window, share = found
    near = f"{share.text('.1%')} of its attention stays within {numbers.recipe.length:,} bytes"
    return f"In windows of {window:,} bytes {near}."


def _deberta_is_robust(numbers: Numbers) -> bool | None:
    found = [numbers.perplexity("deberta", window) for window in numbers.recipe.lengths]
    means = [each.mean for each in found if each is not None]
    if not numbers.longer or not means:
        return None
    return len(means) == len(found) and max(means) <= FLAT * min(means)


def _say_deberta_is_robust(numbers: Numbers) -> str:
    found = [numbers.perplexity("deberta", window) for window in numbers.recipe.lengths]
    means = [each.mean for each in found if each is not None]
    return f"{min(means):,.2f} to {max(means):,.2f} over all lengths; {_from_to(numbers, 'deberta')}."


def _bias_schemes(numbers: Numbers) -> list[str]:
    return [scheme for scheme in numbers.relative() if scheme != "rope" and numbers.rise(scheme) is not None]


def _rope_extrapolates(numbers: Numbers) -> bool | None:
    others = [numbers.rise(scheme) for scheme in _bias_schemes(numbers)]
    ours = numbers.rise("rope")
    if not others or not numbers.longer:
        return None
    return ours is not None and all(other is not None and ours <= other for other in others)


def _say_rope_extrapolates(numbers: Numbers) -> str:
    beside = f" {_beside_nope(numbers, 'rope')}" if "nope" in numbers.by_scheme else ""
    others = "; ".join(f"{scheme} {_times(numbers.rise(scheme))}" for scheme in _bias_schemes(numbers))
    return f"{_from_to(numbers, 'rope')}: {_times(numbers.rise('rope'))}, and {others}.{beside}"


def _rotation_costs_more(numbers: Numbers) -> bool | None:
    ours, other = numbers.step_seconds("rope"), numbers.step_seconds("shaw_bias")
    return None if ours is None or other is None else ours.mean > 1.02 * other.mean


def _say_rotation_costs_more(numbers: Numbers) -> str:
    return _list([f"{name} {_milliseconds(numbers, name)} a step" for name in ("rope", "shaw_bias")]) + "."


def _milliseconds(numbers: Numbers, scheme: str) -> str:
    found = numbers.step_seconds(scheme)
    return "undefined" if found is None else f"{found.text('.0f', 1000)} ms"


RULES: tuple[Rule, ...] = (
    Rule(
        "A learned table of positions has no extrapolation.",
        "article 1, section 2",
        "undefined at every longer length",
        _learned_ends,
        lambda numbers: f"{_from_to(numbers, 'learned')}.",
        ("learned",),
    ),
    Rule(
        "Sinusoids extrapolate, weakly.",
        "article 1, section 2",
        "better than no positions at the first longer length",
        _sinusoids_extrapolate,
        lambda numbers: f"{_from_to(numbers, 'sinusoidal')}. {_beside_nope(numbers, 'sinusoidal')}",
        ("sinusoidal", "nope"),
    ),
    Rule(
        "Relative positions generalise better than absolute ones.",
        "both articles",
        "every relative scheme below every absolute one, at the first and the longest length",
        _relative_beat_absolute,
        _say_relative_beat_absolute,
    ),
    Rule(
        "Relative positions support any length by nature.",
        "article 2",
        f"no relative scheme more than {FLAT:g} times its first perplexity at any longer length",
        _every_length_alike,
        lambda numbers: f"{_say_every_length_alike(numbers)}.",
    ),
    Rule(
        "Distances may be clipped: far ones matter little.",
        "both articles",
        f"shaw_bias at most {FLAT:g} times its first perplexity at every longer length",
        lambda numbers: _flat(numbers, "shaw_bias"),
        lambda numbers: f"Clipped at {max(1, numbers.recipe.length // 2)}: {_from_to(numbers, 'shaw_bias')}.",
        ("shaw_bias",),
    ),
    Rule(
        "Without the factor sqrt(3/d) on its bias, T5 does not train.",
        "article 1, sections 4, 8, 10",
        "t5, trained without it, is worse than no positions",
        _t5_needs_a_factor,
        _say_t5_needs_a_factor,
        ("t5", "nope"),
    ),
    Rule(
        "Past max_distance T5's distances collapse into one bucket, and it suffers.",
        "article 1, sections 9, 10",
        f"t5 more than {FLAT:g} times its first perplexity at some longer length",
        _t5_collapses,
        lambda numbers: f"{_from_to(numbers, 't5')}.",
        ("t5",),
    ),
    Rule(
        "ALiBi keeps its perplexity at 2 to 10 times the trained length.",
        "article 1, section 5",
        f"at most {FLAT:g} times its first perplexity there",
        _alibi_extrapolates,
        _say_alibi_extrapolates,
        ("alibi",),
    ),
    Rule(
        "ALiBi adds -m (j - i).",
        "article 1, section 5",
        "alibi_reversed, which has that sign for a causal model, is better than alibi",
        _printed_sign_is_right,
        _say_printed_sign,
        ("alibi", REVERSED),
    ),
    Rule(
        "Slopes in a geometric series make ALiBi's heads attend to different distances.",
        "article 1, sections 5, 10",
        "the farthest looking head looks at least twice as far as the nearest",
        _heads_differ,
        _say_heads_differ,
        ("alibi",),
    ),
    Rule(
        "In very long texts ALiBi's attention stays near.",
        "article 1, section 9",
        "at least 90% of it within the trained length, in the longer windows",
        _alibi_stays_near,
        _say_alibi_stays_near,
        ("alibi",),
    ),
    Rule(
        "Decoupled terms make DeBERTa robust to shifted positions.",
        "article 1, section 6",
        f"its perplexities at all lengths within a factor of {FLAT:g}",
        _deberta_is_robust,
        _say_deberta_is_robust,
        ("deberta",),
    ),
    Rule(
        "RoPE has the better extrapolation.",
        "article 1, section 7",
        "from the first to the longest length rope rises least of the relative schemes",
        _rope_extrapolates,
        _say_rope_extrapolates,
        ("rope",),
    ),
    Rule(
        "The multiplicative form costs a little more computation than the additive one.",
        "article 2",
        "a step with rope takes over 2% longer than one with shaw_bias",
        _rotation_costs_more,
        _say_rotation_costs_more,
        ("rope", "shaw_bias"),
    ),
)
