"""A study: its trials one after another, their results in one file, the chart and the page.

runs/default/config.json        the configuration and the text's hash; another one is refused
runs/default/trials/<name>/     one folder a trial (see `relpos.study.trial`)
runs/default/results.json       everything found, with versions, machine and text
runs/default/extrapolation.*    perplexity against length, as PNG and SVG
runs/default/report.html        one page with everything, drawn from results.json alone
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relpos import errors, files
from relpos.study.chart import draw
from relpos.study.claim import claim
from relpos.study.config import StudyConfig
from relpos.study.corpus import check_trainable, held_out_segments, load_corpus
from relpos.study.page import write_page
from relpos.study.reporter import Reporter
from relpos.study.results import StudyResult
from relpos.study.trial import run_trial


def run_study(config: StudyConfig, folder: Path, reporter: Reporter) -> StudyResult:
    """Run the trials that have no result yet, then write `results.json`, the chart and the report page.

    Stopped at any moment, the same call goes on at the last checkpoint and ends with the same losses to the bit, on
    the same machine with the same number of threads.
    """
    if config.recipe.text is not None and folder.resolve().is_relative_to(Path(config.recipe.text).resolve()):
        raise errors.value(
            "relpos study",
            f"the run folder {folder} inside the text {config.recipe.text}",
            "a run folder outside the text, which its own files would change",
            "give another --out.",
        )
    corpus = load_corpus(config.recipe.text)
    check_trainable(corpus, config.recipe)
    held_out_segments(corpus, config.recipe)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        identity = {"config": config.to_json(), "corpus": {"sha256": corpus.sha256, "bytes": corpus.bytes}}
        claim(folder, identity, what="run")
        trials = tuple(
            run_trial(trial, folder / "trials" / trial.name, reporter) for trial in config.trials(corpus.sha256)
        )
        result = StudyResult(config, corpus.summary(), trials)
        files.write_json(folder / "results.json", result.to_json())
        draw(trials, folder)
        write_page(result, folder)
    return result


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep a second process out of the folder. The system lets go of the lock when the process ends, however."""
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise errors.value(
                "relpos study",
                f"{folder}, in which another process is at work",
                "one process a run folder",
                "wait for it, or give another --out.",
            ) from error
        yield
