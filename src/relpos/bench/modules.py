"""Attention modules of other libraries. Those with projections get the identity for each: all else is as they ship."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from relpos.bench.work import SCHEMES, Attend, Work
from relpos.schemes import ALiBi, Disentangled, Scheme, T5Bias


def transformers(work: Work, scheme: Scheme) -> Attend | str:
    """T5's and DeBERTa's attention without a causal mask, MPT's ALiBi with one."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    if work.task == "decode":
        return "its modules decode with a cache of their own"
    if isinstance(scheme, T5Bias) and not work.is_causal:
        return _t5_module(work, scheme)
    if isinstance(scheme, Disentangled) and not work.is_causal:
        return _deberta_module(work, scheme)
    if isinstance(scheme, ALiBi) and work.is_causal:
        return _mpt_module(work)
    return "no attention module of its own computes this"


def _t5_module(work: Work, scheme: T5Bias) -> Attend:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    size = work.heads * work.width
    config = T5Config(
        d_model=size,
        d_kv=work.width,
        num_heads=work.heads,
        relative_attention_num_buckets=scheme.num_buckets,
        relative_attention_max_distance=scheme.max_distance,
        attn_implementation="sdpa",
    )
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    _identity(module.q, module.k, module.v, module.o)
    with torch.no_grad():
        # T5 does not scale its products; a query weight that does makes it compute the same as the others.
        module.q.weight /= math.sqrt(work.width)
    module.to(getattr(torch, work.dtype))
    module.relative_attention_bias = _Rows(scheme.table, work)
    return lambda query, key, value: _heads(module(_hidden(query))[0], work)


def _deberta_module(work: Work, scheme: Disentangled) -> Attend:
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, build_relative_position

    module = DisentangledSelfAttention(DebertaV2Config(**_deberta_config(work))).eval()
    _identity(module.query_proj, module.key_proj, module.value_proj)
    _project_positions(module, work)
    seen = torch.ones(1, 1, work.length, work.length, dtype=torch.bool)
    settings = SCHEMES["deberta"]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        hidden = _hidden(query)
        positions = build_relative_position(hidden, hidden, settings["num_buckets"], settings["max_distance"])
        output, _ = module(hidden, seen, relative_pos=positions, rel_embeddings=_embeddings(scheme, work))
        return _heads(output, work)

    return attend


def _mpt_module(work: Work) -> Attend:
    from transformers import MptConfig
    from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor

    size = work.heads * work.width
    module = MptAttention(MptConfig(d_model=size, n_heads=work.heads, max_seq_len=work.length), layer_idx=0).eval()
    _identity(module.out_proj)
    with torch.no_grad():
        module.Wqkv.weight.copy_(torch.eye(size).repeat(3, 1))
    module.to(getattr(torch, work.dtype))
    hidden_keys = torch.ones(work.length, work.length, dtype=torch.bool).triu(1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = build_mpt_alibi_tensor(work.heads, work.length)
        return _heads(module(_hidden(query), bias, attention_mask=hidden_keys)[0], work)

    return attend


def disentangled_flash(work: Work, scheme: Scheme) -> Attend | str:
    """Its route for CPUs: in inference it keeps projected positions and the index of all pairs from call to call."""
    if not isinstance(scheme, Disentangled) or work.is_causal or work.task == "decode":
        return "it computes DeBERTa's attention alone, over all pairs of a whole sequence"
    if importlib.util.find_spec("disentangled_flash") is None:
        return "disentangled-flash is not installed"
    from disentangled_flash import _torch as theirs
    from transformers import DebertaV2Config

    config = DebertaV2Config(**_deberta_config(work))
    kind: Callable[..., nn.Module] = (
        theirs.TorchTrainingDisentangledSelfAttention
        if work.task == "train"
        else theirs.TorchInferenceDisentangledSelfAttention
    )
    module = kind(config, assume_unpadded=True).eval()
    _identity(module.query_proj, module.key_proj, module.value_proj)
    _project_positions(module, work)
    seen = torch.ones(work.batch, work.length, dtype=torch.bool)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, _ = module(_hidden(query), seen, rel_embeddings=_embeddings(scheme, work))
        return _heads(output, work)

    return attend


def _deberta_config(work: Work) -> dict[str, object]:
    return {
        "hidden_size": work.heads * work.width,
        "num_attention_heads": work.heads,
        "relative_attention": True,
        "position_buckets": SCHEMES["deberta"]["num_buckets"],
        "max_relative_positions": SCHEMES["deberta"]["max_distance"],
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": False,
    }


def _embeddings(scheme: Disentangled, work: Work) -> Tensor:
    """Both tables as one embedding of positions `[2 span, 2 H D]`; gradients find their way back."""
    assert scheme.c2p_table is not None
    assert scheme.p2c_table is not None
    both = torch.cat([scheme.c2p_table, scheme.p2c_table]).transpose(0, 1).flatten(1)
    return both.to(getattr(torch, work.dtype))


def _project_positions(module: nn.Module, work: Work) -> None:
    """Each table has its own half of the embedding, then a projection of the size that theirs has."""
    size = work.heads * work.width
    for name, start in (("pos_key_proj", 0), ("pos_query_proj", size)):
        projection = nn.Linear(size, size)
        _identity(projection)
        setattr(module, name, nn.Sequential(_Columns(start, start + size), projection))
    module.to(getattr(torch, work.dtype))


class _Columns(nn.Module):
    """Some columns of its input."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self.start, self.end = start, end

    def forward(self, x: Tensor) -> Tensor:
        return x[..., self.start : self.end]


class _Rows(nn.Module):
    """An embedding whose rows are the columns of a scheme's table, so that the table gets the gradient.

    It must enter a module after that was cast, since it shares the table with the scheme.
    """

    def __init__(self, table: nn.Parameter, work: Work) -> None:
        super().__init__()
        self._dtype = getattr(torch, work.dtype)
        self.table = table

    @property
    def weight(self) -> Tensor:
        """`[rows, heads]`, as an embedding has it."""
        return self.table.T.to(self._dtype).contiguous()

    def forward(self, rows: Tensor) -> Tensor:
        return F.embedding(rows, self.weight)


def x_transformers(work: Work, scheme: Scheme) -> Attend | str:
    """Its flash attention with its own bias modules."""
    if importlib.util.find_spec("x_transformers") is None:
        return "x-transformers is not installed"
    from x_transformers.attend import Attend as TheirAttend
    from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

    positions: Callable[[int, int], Tensor]
    if isinstance(scheme, T5Bias):
        buckets = (not scheme.bidirectional, scheme.num_buckets, scheme.max_distance)
        learned = RelativePositionBias(1.0, *buckets, work.heads)
        learned.relative_attention_bias = _Rows(scheme.table, replace(work, dtype="float32"))
        positions = learned
    elif isinstance(scheme, ALiBi):
        positions = AlibiPositionalBias(work.heads)
    else:
        return "it has no such bias"
    attention = TheirAttend(heads=work.heads, causal=work.is_causal, flash=True, dropout=0.0)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = positions(work.queries, work.length).to(query.dtype)
        output, _ = attention(query, key, value, attn_bias=bias)
        assert isinstance(output, Tensor)
        return output

    return attend


def _identity(*projections: object) -> None:
    for projection in projections:
        assert isinstance(projection, nn.Linear)
        nn.init.eye_(projection.weight)
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)


def _hidden(query: Tensor) -> Tensor:
    """`[B, H, T, D]` as the hidden states `[B, T, H D]` of a module."""
    return query.transpose(1, 2).flatten(2)


def _heads(hidden: Tensor, work: Work) -> Tensor:
    split: Tensor = hidden.unflatten(-1, (work.heads, work.width))
    return split.transpose(1, 2)
