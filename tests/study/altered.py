"""Studies with other numbers than any run gave: what the words of a report must follow."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relpos.study import Recipe, StudyConfig, StudyResult, TrialConfig
from relpos.study.results import AttendedDistances, CorpusSummary, LossByPosition, Memory, Score, TrialResult

RECIPE = Recipe(length=16, multiples=(1, 2, 8), steps=4, size="tiny", threads=1)
STARTS = {16: (0, 1, 2, 4, 8), 128: (0, 1, 2, 4, 8, 16, 32, 64)}
CORPUS = CorpusSummary("a rule", 2, 0, 3000, "5ha", 2700, 300, ("held/out.txt",))
MACHINE: dict[str, Any] = {"torch": "2.0", "cpu": "a processor", "cores": None, "threads": 1}

#: Perplexities at 16, 32 and 128 bytes; None is undefined. Every claim has something to say about them.
BASE: dict[str, tuple[float | None, ...]] = {
    "nope": (8.0, 9.0, 10.0),
    "learned": (6.0, None, None),
    "sinusoidal": (6.5, 13.0, 27.0),
    "shaw_bias": (4.5, 4.4, 4.3),
    "t5": (4.6, 4.5, 4.4),
    "alibi": (5.8, 5.7, 5.6),
    "alibi_reversed": (9.0, 9.5, 12.0),
    "deberta": (4.7, 4.6, 4.5),
    "rope": (5.0, 6.0, 16.0),
}


def score(rule: str, window: int, perplexity: float | None) -> Score:
    """A score; its loss by position is the same at every position."""
    loss = None if perplexity is None else math.log(perplexity)
    bins = None
    if rule == "non_overlapping" and loss is not None:
        bins = LossByPosition(4, (64,) * (window // 4), (loss,) * (window // 4))
    stride = window if rule == "non_overlapping" else window // 4
    undefined = "the table has 16 rows" if loss is None else None
    return Score(rule, window, stride, 256 // window, 256, loss, undefined, bins)  # type: ignore[arg-type]


def heads(window: int, reach: tuple[int, int]) -> AttendedDistances:
    """Two layers of two heads; head `h` gives all of its attention to bin `reach[h]`."""
    starts = STARTS[window]
    layer = tuple(tuple(float(index == bin_) for index in range(len(starts))) for bin_ in reach)
    return AttendedDistances(window, starts, (layer, layer))


def trial(
    scheme: str,
    perplexities: tuple[float | None, ...],
    *,
    seed: int = 0,
    sliding: tuple[float | None, ...] | None = None,
    seconds: float = 1.0,
    reach: tuple[tuple[int, int], tuple[int, int]] = ((1, 3), (1, 3)),
    recipe: Recipe = RECIPE,
) -> TrialResult:
    """A trial with these perplexities end to end and, unless told otherwise, in sliding windows."""
    scores = tuple(
        score(rule, window, value)
        for window, end_to_end, slid in zip(recipe.lengths, perplexities, sliding or perplexities, strict=True)
        for rule, value in (("non_overlapping", end_to_end), ("sliding", slid))
    )
    near, far = heads(16, reach[0]), heads(128, reach[1])
    if perplexities[-1] is None:
        far = AttendedDistances(128, STARTS[128], None, "the table has 16 rows")
    return TrialResult(
        config=TrialConfig(scheme, seed, CORPUS.sha256, recipe),
        parameters=1000,
        position_parameters=64,
        train_losses=(5.0, 4.0, 3.0, 2.0),
        scores=scores,
        attended=(near, far),
        memory=Memory(2**20, 128, None if perplexities[-1] is None else 2**21),
        train_seconds=seconds,
        evaluation_seconds=0.5,
        environment=MACHINE,
    )


def study(
    changes: Mapping[str, tuple[float | None, ...] | None] | None = None,
    *,
    seeds: tuple[Mapping[str, tuple[float | None, ...]], ...] = ({},),
    **details: Mapping[str, Any],
) -> StudyResult:
    """`BASE` with changes: other perplexities, None to leave a scheme out, and one set of further changes a seed.

    `details` are a trial's other arguments, by scheme: `study(alibi={"seconds": 2.0})`.
    """
    wanted = {name: values for name, values in (BASE | dict(changes or {})).items() if values is not None}
    trials = tuple(
        trial(name, {**wanted, **own}[name], seed=seed, **details.get(name, {}))
        for seed, own in enumerate(seeds)
        for name in wanted
    )
    return StudyResult(StudyConfig(tuple(wanted), tuple(range(len(seeds))), RECIPE), CORPUS, trials)


def with_text(found: StudyResult, text: str) -> StudyResult:
    """The study with `text` added to every text field that a file can bring: names of files, rules, machines."""
    recipe = replace(found.config.recipe, text=text)
    corpus = replace(found.corpus, rule=text, sha256=text, held_out_files=(text, text))
    trials = tuple(
        replace(
            each,
            config=replace(each.config, recipe=recipe, corpus_sha256=text),
            environment={**dict.fromkeys(each.environment, text), text: text},
            scores=tuple(replace(s, undefined=None if s.undefined is None else text) for s in each.scores),
            attended=tuple(replace(a, undefined=None if a.undefined is None else text) for a in each.attended),
        )
        for each in found.trials
    )
    return StudyResult(replace(found.config, recipe=recipe), corpus, trials)


def as_file(found: StudyResult) -> Any:
    """What `results.json` holds, as a fresh object that may be damaged."""
    return json.loads(json.dumps(found.to_json()))
