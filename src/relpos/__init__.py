"""Relative positions for Transformers: every scheme behind one attention call."""

from relpos import functional as functional
from relpos.attention import attention as attention
from relpos.attention import attention_weights as attention_weights
from relpos.attention import explain as explain
from relpos.errors import BackendRefused as BackendRefused
from relpos.nn import KVCache as KVCache
from relpos.nn import RelativeAttention as RelativeAttention
from relpos.nn import RelativeBias as RelativeBias
from relpos.positions import Positions as Positions
from relpos.schemes import *  # noqa: F403  # one line a scheme, in one place

__version__ = "0.1.0"
