"""What a trial found, and how it is written down.

A number that does not exist is null in JSON and comes with its reason in `undefined`; NaN is never written.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from relpos import errors, files
from relpos.study.config import TrialConfig, differences

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
        """The fields as JSON has them, with the perplexities."""
        return asdict(self) | {"perplexity": self.perplexity}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        values = {key: item for key, item in data.items() if key != "perplexity"}
        bins = values.pop("by_position")
        by_position = bins and LossByPosition(bins["bin_width"], tuple(bins["tokens"]), tuple(bins["loss"]))
        return cls(**values, by_position=by_position)


@dataclass(frozen=True)
class TrialResult:
    """One finished trial. `environment` is that of the process that finished it."""

    config: TrialConfig
    parameters: int
    position_parameters: int
    train_losses: tuple[float, ...]
    scores: tuple[Score, ...]
    train_seconds: float
    evaluation_seconds: float
    environment: dict[str, Any]

    def score(self, rule: Rule, window: int) -> Score:
        """The score under one rule at one window length."""
        return next(score for score in self.scores if (score.rule, score.window) == (rule, window))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        fields = asdict(self) | {"config": self.config.to_json(), "scores": [s.to_json() for s in self.scores]}
        return fields | {"train_losses": list(self.train_losses)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(
            **data
            | {
                "config": TrialConfig.from_json(data["config"]),
                "scores": tuple(Score.from_json(score) for score in data["scores"]),
                "train_losses": tuple(data["train_losses"]),
            }
        )

    def save(self, folder: Path) -> None:
        """Write `result.json`, whole or not at all."""
        files.write_json(folder / "result.json", self.to_json())


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
    except (KeyError, TypeError, AttributeError) as error:
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
