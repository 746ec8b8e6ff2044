"""Which file of this room knows which modeling file of transformers."""

from __future__ import annotations

import importlib
import sys

from torch import nn

#: Modeling file, below `transformers.models` -> file here. A family is imported when a model has modules of it.
FAMILIES = {
    "bert.modeling_bert": "relative_key",
    "bloom.modeling_bloom": "bloom",
    "camembert.modeling_camembert": "relative_key",
    "deberta.modeling_deberta": "deberta",
    "deberta_v2.modeling_deberta_v2": "deberta_v2",
    "electra.modeling_electra": "relative_key",
    "falcon.modeling_falcon": "falcon",
    "longt5.modeling_longt5": "longt5",
    "mpnet.modeling_mpnet": "mpnet",
    "mpt.modeling_mpt": "mpt",
    "mt5.modeling_mt5": "t5",
    "roberta.modeling_roberta": "relative_key",
    "t5.modeling_t5": "t5",
    "umt5.modeling_umt5": "t5",
    "wav2vec2_bert.modeling_wav2vec2_bert": "wav2vec2_bert",
    "xlm_roberta.modeling_xlm_roberta": "relative_key",
}
PREFIX = "transformers.models."


def family_of(module: nn.Module) -> str | None:
    """The family that knows the modeling file of a module, imported; None where none does."""
    path = type(module).__module__
    family = FAMILIES.get(path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None
    if family is not None and f"relpos.hf.{family}" not in sys.modules:
        importlib.import_module(f"relpos.hf.{family}")
    return family
