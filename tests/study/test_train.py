"""A batch is a function of seed and step, and a stopped training ends where an unbroken one does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from relpos.study import Recipe, Silent, TrialConfig, load_corpus
from relpos.study.model import build_model
from relpos.study.train import batch, repeatable, train


def test_a_batch_depends_on_text_seed_and_step_only(text: str, recipe: Recipe) -> None:
    corpus = load_corpus(text)
    first = batch(corpus.train, seed=0, step=3, recipe=recipe)
    torch.rand(5)
    assert torch.equal(first, batch(corpus.train, seed=0, step=3, recipe=recipe))
    assert not torch.equal(first, batch(corpus.train, seed=0, step=4, recipe=recipe))
    assert not torch.equal(first, batch(corpus.train, seed=1, step=2, recipe=recipe))
    assert first.shape == (4, 17)
    whole = bytes(corpus.train.tolist())
    assert all(bytes(row.tolist()) in whole for row in first)


def test_every_window_of_the_text_can_be_drawn_and_none_past_its_end(recipe: Recipe) -> None:
    text = torch.arange(20, dtype=torch.uint8)
    short = replace(recipe, length=16, batch_size=200)
    firsts = {int(row[0]) for row in batch(text, seed=0, step=0, recipe=short)}
    assert firsts == {0, 1, 2, 3}


class Stop(Exception):
    """Raised in the middle of a training to stop it."""


class StopsAt(Silent):
    """Stops the training once a step is done."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_done(self, config: TrialConfig, step: int, loss: float) -> None:
        if step == self.step:
            raise Stop


@pytest.mark.parametrize("scheme", ["t5", "deberta", "learned"])
def test_stopped_and_resumed_equals_unbroken_to_the_bit(scheme: str, text: str, recipe: Recipe, tmp_path: Path) -> None:
    corpus = load_corpus(text)
    config = TrialConfig(scheme, 0, corpus.sha256, recipe)
    with repeatable(recipe.threads):
        whole_model = build_model(config)
        whole = train(whole_model, config, corpus.train, tmp_path / "whole", Silent())
        # Stopped in the first interval, just after a checkpoint, and between two checkpoints.
        for step in (2, 5, 8):
            with pytest.raises(Stop):
                train(build_model(config), config, corpus.train, tmp_path / "broken", StopsAt(step))
        model = build_model(config)
        broken = train(model, config, corpus.train, tmp_path / "broken", Silent())
    assert len(whole.losses) == recipe.steps
    assert broken.losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole_model.parameters(), strict=True))


def test_the_logs_have_every_step_once_after_a_stop(text: str, recipe: Recipe, tmp_path: Path) -> None:
    corpus = load_corpus(text)
    config = TrialConfig("nope", 0, corpus.sha256, recipe)
    with pytest.raises(Stop):
        train(build_model(config), config, corpus.train, tmp_path, StopsAt(8))
    progress = train(build_model(config), config, corpus.train, tmp_path, Silent())
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    logged = events.Scalars("train/loss")
    assert [event.step for event in logged] == list(range(recipe.steps))
    assert [event.value for event in logged] == pytest.approx(progress.losses, rel=1e-6)


def test_training_lowers_the_loss(text: str, recipe: Recipe, tmp_path: Path) -> None:
    corpus = load_corpus(text)
    config = TrialConfig("alibi", 0, corpus.sha256, replace(recipe, steps=60, batch_size=16))
    losses = train(build_model(config), config, corpus.train, tmp_path, Silent()).losses
    assert losses[0] > 5
    assert losses[-1] < 0.7 * losses[0]


def test_a_diverging_training_stops_with_a_clear_word(text: str, recipe: Recipe, tmp_path: Path) -> None:
    corpus = load_corpus(text)
    config = TrialConfig("nope", 0, corpus.sha256, replace(recipe, learning_rate=1e30))
    with pytest.raises(FloatingPointError, match=r"nope-seed0.*Lower the learning rate"):
        train(build_model(config), config, corpus.train, tmp_path, Silent())


def test_repeatable_puts_the_settings_back() -> None:
    torch.use_deterministic_algorithms(False)
    threads = torch.get_num_threads()
    with repeatable(threads + 1):
        assert torch.get_num_threads() == threads + 1
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
