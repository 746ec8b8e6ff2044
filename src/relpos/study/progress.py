"""Progress bars for a running study: the whole of it with the time left, and the current trial with its loss."""

import math
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from relpos.study.config import Recipe, StudyConfig, TrialConfig
from relpos.study.results import Score, TrialResult


class RichReporter:
    """A `Reporter` that draws two bars on a terminal, and a line for each finished trial anywhere."""

    def __init__(self, config: StudyConfig, console: Console) -> None:
        recipe = config.recipe
        self._trial_work = recipe.steps + sum(_work(recipe, window) for window in recipe.lengths)
        self._trials = len(config.schemes) * len(config.seeds)
        self._done = 0
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=120,
        )
        self._study = self._progress.add_task("study", total=self._trial_work * self._trials, note="")
        self._trial = self._progress.add_task("trial", total=self._trial_work, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def training_started(self, config: TrialConfig, step: int) -> None:
        """Start the trial's bar, part of the way in where a checkpoint was found."""
        self._progress.reset(self._trial, completed=step, description=config.name, note="")
        self._progress.update(self._study, completed=self._done * self._trial_work + step)
        if step:
            self._console.print(f"{config.name}: goes on at step {step} of {config.recipe.steps}")

    def step_done(self, config: TrialConfig, step: int, loss: float) -> None:
        """Move both bars on and show the loss."""
        self._progress.update(self._trial, advance=1, note=f"step {step + 1}, loss {loss:.3f}")
        self._progress.update(self._study, advance=1)

    def length_scored(self, config: TrialConfig, scores: tuple[Score, ...]) -> None:
        """Move both bars on and show the perplexity."""
        first = scores[0]
        found = "undefined" if first.perplexity is None else f"perplexity {first.perplexity:.2f}"
        work = _work(config.recipe, first.window)
        self._progress.update(self._trial, advance=work, note=f"window {first.window}: {found}")
        self._progress.update(self._study, advance=work)

    def trial_done(self, result: TrialResult) -> None:
        """Print the trial's line and move the study's bar to its end."""
        self._done += 1
        note = f"{self._done} of {self._trials} trials"
        self._progress.update(self._study, completed=self._done * self._trial_work, note=note)
        score = result.score("non_overlapping", result.config.recipe.lengths[0])
        found = "undefined" if score.perplexity is None else f"perplexity {score.perplexity:.2f}"
        seconds = result.train_seconds + result.evaluation_seconds
        self._console.print(f"{result.config.name}: {found} at window {score.window}, {seconds:.0f} s")


def _work(recipe: Recipe, window: int) -> int:
    """The cost of scoring one window length, in training steps: a forward pass is a third of a step, dense attention
    grows with the window, and every token passes once end to end and about four times in sliding windows."""
    passes = 5 * recipe.segments * recipe.segment_length / (recipe.batch_size * recipe.length)
    return math.ceil(passes / 3 * (1 + window / 512))
