"""Train short, test long: what each position scheme does beyond the length it was trained at."""

from relpos.study.config import DEFAULT_SCHEMES, SIZES, Recipe, StudyConfig, TrialConfig
from relpos.study.corpus import Corpus, load_corpus
from relpos.study.page import write_page
from relpos.study.presets import scheme_names
from relpos.study.reporter import Reporter, Silent
from relpos.study.results import Score, StudyResult, TrialResult, load_study
from relpos.study.run import run_study
from relpos.study.trial import run_trial
from relpos.study.windows import Window, non_overlapping, sliding

__all__ = [
    "DEFAULT_SCHEMES",
    "SIZES",
    "Corpus",
    "Recipe",
    "Reporter",
    "Score",
    "Silent",
    "StudyConfig",
    "StudyResult",
    "TrialConfig",
    "TrialResult",
    "Window",
    "load_corpus",
    "load_study",
    "non_overlapping",
    "run_study",
    "run_trial",
    "scheme_names",
    "sliding",
    "write_page",
]
