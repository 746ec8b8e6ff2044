"""What a running study tells whoever watches it."""

from typing import Protocol

from relpos.study.config import TrialConfig
from relpos.study.results import Score, TrialResult


class Reporter(Protocol):
    """Called while trials run; what it does has no influence on any result."""

    def training_started(self, config: TrialConfig, step: int) -> None:
        """A trial begins at `step`: 0, or where its newest checkpoint was written."""

    def step_done(self, config: TrialConfig, step: int, loss: float) -> None:
        """One training step is done, with its loss in nats per byte."""

    def length_scored(self, config: TrialConfig, scores: tuple[Score, ...]) -> None:
        """All held-out tokens are scored at one window length."""

    def trial_done(self, result: TrialResult) -> None:
        """A trial has its result, from this run or from an earlier one."""


class Silent:
    """A reporter that says nothing."""

    def training_started(self, config: TrialConfig, step: int) -> None:
        """Say nothing."""

    def step_done(self, config: TrialConfig, step: int, loss: float) -> None:
        """Say nothing."""

    def length_scored(self, config: TrialConfig, scores: tuple[Score, ...]) -> None:
        """Say nothing."""

    def trial_done(self, result: TrialResult) -> None:
        """Say nothing."""
