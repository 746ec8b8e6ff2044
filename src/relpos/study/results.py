"""What a trial and a study found, and how it is written down.

A number that does not exist is null in JSON and comes with its reason in `undefined`; NaN is never written.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from relpos import errors, files
from relpos.study.config import StudyConfig, TrialConfig, differences
from relpos.study.serial import plain, read
from relpos.study.windows import distance_bins

Rule = Literal["non_overlapping", "sliding"]


@dataclass(frozen=True)
class LossByPosition:
    """Mean loss by position inside the window, in bins of neighbouring positions.

    Entry `i` is about the targets at positions `[i * bin_width, (i + 1) * bin_width)`: how many, and their mean loss.
    """

    bin_width: int
    tokens: tuple[int, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class Score:
    """The held-out tokens at one window length: `tokens` of them, each once, in `windows` windows `stride` apart.

    `loss` is the mean in nats per byte, `perplexity` its exponential.
    """

    computed: ClassVar[tuple[str, ...]] = ("perplexity",)

    rule: Rule
    window: int
    stride: int
    windows: int
    tokens: int
    loss: float | None
    undefined: str | None = None
    by_position: LossByPosition | None = None

    @property
    def perplexity(self) -> float | None:
        """exp(loss): between how many equally likely bytes the model hesitates."""
        return None if self.loss is None else math.exp(self.loss)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them, with the perplexity."""
        data: dict[str, Any] = plain(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`."""
        return read(cls, data)


@dataclass(frozen=True)
class AttendedDistances:
    """The share of its attention that each head gives to each bin of distances, in windows of one length.

    `shares[layer][head][i]` is about the keys that lie `starts[i]` to `starts[i + 1] - 1` (at the end: `window - 1`)
    tokens back; they sum to 1 over `i`.
    """

    window: int
    starts: tuple[int, ...]
    shares: tuple[tuple[tuple[float, ...], ...], ...] | None
    undefined: str | None = None


@dataclass(frozen=True)
class Memory:
    """Peak bytes beyond weights and optimizer: of one training step, and of one window of `window` bytes.

    `longest_window` is None where the scheme has no position for its end.
    """

    train_step: int
    window: int
    longest_window: int | None


@dataclass(frozen=True)
class TrialResult:
    """One finished trial. `environment` is that of the process that finished it."""

    config: TrialConfig
    parameters: int
    position_parameters: int
    train_losses: tuple[float, ...]
    scores: tuple[Score, ...]
    attended: tuple[AttendedDistances, ...]
    memory: Memory
    train_seconds: float
    evaluation_seconds: float
    environment: dict[str, Any]

    def score(self, rule: Rule, window: int) -> Score:
        """The score under one rule at one window length."""
        return next(score for score in self.scores if (score.rule, score.window) == (rule, window))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        data: dict[str, Any] = plain(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`."""
        return read(cls, data)

    def save(self, folder: Path) -> None:
        """Write `result.json`, whole or not at all."""
        files.write_json(folder / "result.json", self.to_json())


@dataclass(frozen=True)
class CorpusSummary:
    """Which text the numbers belong to: everything but the text."""

    rule: str
    files: int
    skipped_files: int
    bytes: int
    sha256: str
    train_bytes: int
    held_out_bytes: int
    held_out_files: tuple[str, ...]


@dataclass(frozen=True)
class StudyResult:
    """Everything a study found, and about which text."""

    computed: ClassVar[tuple[str, ...]] = ("environment",)

    config: StudyConfig
    corpus: CorpusSummary
    trials: tuple[TrialResult, ...]

    def __post_init__(self) -> None:
        wanted = list(self.config.trials(self.corpus.sha256))
        if [trial.config for trial in self.trials] != wanted:
            given = ", ".join(trial.config.name for trial in self.trials) or "no trials"
            raise errors.value(
                "StudyResult(trials=...)",
                given if given != ", ".join(trial.name for trial in wanted) else "trials of another configuration",
                f"one result each of {', '.join(trial.name for trial in wanted)}",
                "run the study again in a new folder.",
            )
        for trial in self.trials:
            _check_complete(trial)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and machine; where trials were computed under different ones, the list of them."""
        values: dict[str, Any] = {}
        for key in dict.fromkeys(key for trial in self.trials for key in trial.environment):
            distinct: list[Any] = []
            for trial in self.trials:
                value = trial.environment.get(key)
                distinct += [] if value in distinct else [value]
            values[key] = distinct[0] if len(distinct) == 1 else distinct
        return values

    def to_json(self) -> dict[str, Any]:
        """What `results.json` holds."""
        data: dict[str, Any] = plain(self)
        # Versions and machine first: a reader of the file sees at once what the numbers belong to.
        return {name: data[name] for name in ("environment", "corpus", "config", "trials")}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; what is missing, damaged or of another version raises, naming the place."""
        return read(cls, data)


def by_scheme(trials: Sequence[TrialResult]) -> dict[str, list[TrialResult]]:
    """The trials of each scheme, in the order in which schemes first appear: one trial a seed."""
    groups: dict[str, list[TrialResult]] = {}
    for trial in trials:
        groups.setdefault(trial.config.scheme, []).append(trial)
    return groups


def load_result(folder: Path, config: TrialConfig) -> TrialResult | None:
    """The result in a trial's folder, or None where the trial has not finished; another trial's result is refused."""
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        result = TrialResult.from_json(files.read_json(path))
    except (ValueError, TypeError) as error:
        raise files.damaged(path, error) from error
    found = differences(config.to_json(), result.config.to_json())
    if found:
        raise errors.value(
            "load_result",
            f"{path} of another trial ({'; '.join(found)})",
            f"a result of {config.name}",
            "use another run folder.",
        )
    return result


def load_study(folder: Path) -> StudyResult:
    """The study whose `results.json` lies in `folder`; refuses a missing, damaged or older file."""
    path = folder / "results.json"
    if not path.exists():
        raise errors.value(
            "relpos study",
            f"no {path}",
            "the folder of a finished study",
            "run the study first, or name its folder with --out.",
        )
    try:
        return StudyResult.from_json(files.read_json(path))
    except (ValueError, TypeError) as error:
        raise errors.value(
            "relpos study",
            f"{path}, damaged or of another version of relpos ({error})",
            "a results.json as this version writes it",
            "run the study again in a new folder.",
        ) from error


def _check_complete(trial: TrialResult) -> None:
    """Refuse a trial whose numbers are fewer or other than its configuration says."""
    recipe, shape = trial.config.recipe, trial.config.recipe.shape
    rules: tuple[Rule, Rule] = ("non_overlapping", "sliding")
    scored = [(score.rule, score.window) for score in trial.scores]
    _require(scored == [(rule, window) for window in recipe.lengths for rule in rules], trial, "scores")
    _require(len(trial.train_losses) == recipe.steps, trial, "train_losses")
    for score in trial.scores:
        bins = score.by_position
        _require((score.loss is None) == (score.undefined is not None), trial, "scores")
        _require((bins is not None) == (score.rule == "non_overlapping" and score.loss is not None), trial, "scores")
        if bins is not None:
            _require(bins.bin_width == recipe.length // 4 and min(bins.tokens, default=0) > 0, trial, "scores")
            _require(len(bins.loss) == len(bins.tokens) == -(-score.window // bins.bin_width), trial, "scores")
    _require(trial.memory.window == recipe.lengths[-1], trial, "memory")
    _require(tuple(seen.window for seen in trial.attended) == recipe.attended_lengths, trial, "attended")
    for seen in trial.attended:
        _require(seen.starts == distance_bins(seen.window), trial, "attended")
        _require((seen.shares is None) == (seen.undefined is not None), trial, "attended")
        if seen.shares is not None:
            heads = [head for layer in seen.shares for head in layer]
            _require([len(layer) for layer in seen.shares] == [shape.heads] * shape.layers, trial, "attended")
            _require(all(len(head) == len(seen.starts) and min(head) >= 0 for head in heads), trial, "attended")
            _require(all(abs(sum(head) - 1) < 1e-3 for head in heads), trial, "attended")


def _require(condition: bool, trial: TrialResult, field: str) -> None:
    if not condition:
        raise errors.value(
            f"{trial.config.name}.{field}",
            "numbers that do not belong to the trial's configuration",
            "every evaluated length and rule once, every head's shares with a sum of 1",
            "run the study again in a new folder.",
        )
