"""One trial from beginning to end, inside its own folder.

config.json                 what the trial is
checkpoints/                the newest checkpoint (see `relpos.study.checkpoint`)
tensorboard/                training curves
evaluation/window-64.json   the scores at one window length, kept so that a stopped evaluation goes on
result.json                 everything found; once it exists the trial is not run again
"""

import time
from pathlib import Path

from jaxtyping import Int64
from torch import Tensor

from relpos import errors, files
from relpos.machine import environment
from relpos.study.attended import attended_distances
from relpos.study.claim import claim
from relpos.study.config import TrialConfig
from relpos.study.corpus import check_trainable, held_out_segments, load_corpus
from relpos.study.evaluate import score_length
from relpos.study.memory import measure_memory
from relpos.study.model import ByteLM, build_model
from relpos.study.reporter import Reporter
from relpos.study.results import Score, TrialResult, load_result
from relpos.study.train import repeatable, train


def run_trial(config: TrialConfig, folder: Path, reporter: Reporter) -> TrialResult:
    """Train and score what `config` describes, or read the result where `folder` already has it.

    Reads nothing but `config`, the text that it names and `folder`; writes nothing outside `folder`.
    """
    claim(folder, config.to_json(), what="trial")
    result = load_result(folder, config)
    if result is None:
        with repeatable(config.recipe.threads):
            result = _train_and_score(config, folder, reporter)
        result.save(folder)
    reporter.trial_done(result)
    return result


def _train_and_score(config: TrialConfig, folder: Path, reporter: Reporter) -> TrialResult:
    corpus = load_corpus(config.recipe.text)
    if corpus.sha256 != config.corpus_sha256:
        raise errors.value(
            "run_trial",
            f"a text with sha256 {corpus.sha256}",
            f"the trial's text, {config.corpus_sha256}",
            "give the same text, or start a new run folder.",
        )
    check_trainable(corpus, config.recipe)
    segments = held_out_segments(corpus, config.recipe)
    model = build_model(config)
    progress = train(model, config, corpus.train, folder, reporter)
    started = time.perf_counter()
    scores: list[Score] = []
    for window in config.recipe.lengths:
        pair = _score_once(model, segments, window, config, folder / "evaluation" / f"window-{window}.json")
        scores += pair
        reporter.length_scored(config, pair)
    evaluation_seconds = time.perf_counter() - started
    return TrialResult(
        config=config,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        position_parameters=sum(parameter.numel() for parameter in model.position_parameters().values()),
        train_losses=progress.losses,
        scores=tuple(scores),
        attended=tuple(attended_distances(model, segments, window) for window in config.recipe.attended_lengths),
        memory=measure_memory(config),
        train_seconds=progress.seconds,
        evaluation_seconds=evaluation_seconds,
        environment=environment(config.recipe.threads),
    )


def _score_once(
    model: ByteLM, segments: Int64[Tensor, "K N1"], window: int, config: TrialConfig, path: Path
) -> tuple[Score, Score]:
    if path.exists():
        try:
            first, second = (Score.from_json(score) for score in files.read_json(path))
        except (ValueError, TypeError) as error:
            raise files.damaged(path, error) from error
        return first, second
    path.parent.mkdir(exist_ok=True)
    pair = score_length(model, segments, window, bin_width=config.recipe.length // 4)
    files.write_json(path, [score.to_json() for score in pair])
    return pair
