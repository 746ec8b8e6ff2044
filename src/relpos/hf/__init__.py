"""Hugging Face models with their positions computed by relpos: the same weights, less time, memory linear in length.

Needs transformers (the extra "hf").

>>> import relpos.hf
>>> from transformers import T5Config, T5EncoderModel
>>> config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
>>> model = relpos.hf.patch(T5EncoderModel(config))
>>> print(relpos.hf.summary(model))
1 x T5Stack      patched: t5
2 x T5Attention  patched: t5
"""

from relpos.hf.distance_tables import load_relative_key as load_relative_key
from relpos.hf.patching import patch as patch
from relpos.hf.patching import restore as restore
from relpos.hf.report import summary as summary
