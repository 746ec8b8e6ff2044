"""Absolute positions: sinusoidal tables of many models, and learned tables with an offset (case F8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from agreement import assert_agree, assert_near, inputs, padding, randomised, with_tables
from torch import Tensor
from transformers import RobertaConfig
from transformers.models.autoformer.modeling_autoformer import AutoformerSinusoidalPositionalEmbedding
from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding
from transformers.models.ctrl.modeling_ctrl import positional_encoding as ctrl_table
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings as distilbert_table
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import (
    FastSpeech2ConformerRelPositionalEncoding,
)
from transformers.models.flaubert.modeling_flaubert import create_sinusoidal_embeddings as flaubert_table
from transformers.models.florence2.modeling_florence2 import Florence2VisionPositionalEmbeddingCosine1D
from transformers.models.informer.modeling_informer import InformerSinusoidalPositionalEmbedding
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding
from transformers.models.speech_to_text.modeling_speech_to_text import Speech2TextSinusoidalPositionalEmbedding
from transformers.models.speecht5.modeling_speecht5 import SpeechT5ScaledPositionalEncoding
from transformers.models.videomae.modeling_videomae import get_sinusoid_encoding_table as videomae_table
from transformers.models.whisper.modeling_whisper import sinusoids as whisper_table
from transformers.models.xlm.modeling_xlm import create_sinusoidal_embeddings as xlm_table

import relpos

DTYPES = [torch.float32, torch.float64]
Table = Callable[[int, int], Tensor]


def by_weight(embedding: Callable[[int, int], torch.nn.Module]) -> Table:
    return lambda length, width: embedding(length, width).create_weight()  # type: ignore[operator]


def in_place(fill: Callable[[int, int, Tensor], object]) -> Table:
    def table(length: int, width: int) -> Tensor:
        out = torch.full((length, width), torch.nan)
        fill(length, width, out)
        return out

    return table


def florence2(length: int, width: int) -> Tensor:
    sine, cosine = Florence2VisionPositionalEmbeddingCosine1D.get_sinusoid_embeddings(length, width)
    return torch.stack((sine, cosine), dim=-1).flatten(-2)


CONCATENATED: dict[str, Table] = {
    "marian": by_weight(MarianSinusoidalPositionalEmbedding),
    "pegasus": by_weight(PegasusSinusoidalPositionalEmbedding),
    "roformer": by_weight(RoFormerSinusoidalPositionalEmbedding),
    "informer": by_weight(InformerSinusoidalPositionalEmbedding),
    "autoformer": by_weight(AutoformerSinusoidalPositionalEmbedding),
    "ctrl": lambda length, width: ctrl_table(length, width, torch.float64).float(),
}
INTERLEAVED: dict[str, Table] = {
    "distilbert": in_place(distilbert_table),
    "xlm": in_place(xlm_table),
    "flaubert": in_place(flaubert_table),
    "videomae": lambda length, width: videomae_table(length, width)[0],
}
# These two multiply float32 positions by float32 frequencies: 200 tokens leave an angle error of about 200 epsilon.
ROUNDED: dict[str, Table] = {
    "speecht5": lambda length, width: SpeechT5ScaledPositionalEncoding(0.0, width, max_len=length).pe[0],
    "florence2": florence2,
}


def cases(layout: str, tables: dict[str, Table], *widths: int) -> list[object]:
    return [
        pytest.param(table, layout, width, id=f"{name}-{width}") for name, table in tables.items() for width in widths
    ]


@pytest.mark.parametrize(
    ("table", "layout", "width"),
    [*cases("concatenated", CONCATENATED, 6, 32, 7, 33), *cases("interleaved", INTERLEAVED, 6, 32, 7, 33)],
)
def test_sinusoidal(table: Table, layout: str, width: int) -> None:
    """Both are made in float64 and rounded once, which may fall on two neighbours."""
    ours = relpos.functional.sinusoidal_table(torch.arange(200), width, layout=layout)
    torch.testing.assert_close(ours, table(200, width), rtol=0.0, atol=torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(("table", "layout", "width"), cases("interleaved", ROUNDED, 6, 32))
def test_sinusoidal_made_in_float32(table: Table, layout: str, width: int) -> None:
    ours = relpos.functional.sinusoidal_table(torch.arange(200), width, layout=layout)
    assert_near(ours, table(200, width), "table")


def test_sinusoidal_of_negative_positions() -> None:
    """Conformer's relative table runs from the farthest past key, T - 1, down to -(T - 1)."""
    length, width = 50, 16
    config = type("Config", (), {"hidden_size": width})
    encoding = FastSpeech2ConformerRelPositionalEncoding(config, {"positional_dropout_rate": 0.0})
    theirs = encoding.extend_pos_enc(torch.zeros(1, length))[0]
    ours = relpos.functional.sinusoidal_table(torch.arange(length - 1, -length, -1), width)
    assert_near(ours, theirs, "table")


# tensor2tensor's variant has the exponent m / (E / 2 - 1) where the paper has m / (E / 2), so that its last wavelength
# is 10000 itself. In transformers 5.24 it is that of M2M100, Speech2Text, XGLM, FSMT, NLLB-MoE, TrOCR, Kosmos-2 and
# 2.5, MusicGen and MusicGen Melody, SeamlessM4T (both), SpeechT5's decoder, Pegasus-X, Whisper and its kin
# (Qwen2.5-Omni, Qwen3-Omni, Qwen3-ASR, Fun-ASR-Nano): their tables are not ours at the paper's base.
@pytest.mark.parametrize("width", [6, 32])
@pytest.mark.parametrize(
    "table",
    [
        pytest.param(whisper_table, id="whisper"),
        pytest.param(M2M100SinusoidalPositionalEmbedding.get_embedding, id="m2m100"),
        pytest.param(Speech2TextSinusoidalPositionalEmbedding.get_embedding, id="speech_to_text"),
    ],
)
def test_tensor2tensor_variant_differs_by_its_base(table: Table, width: int) -> None:
    """Not ours at base 10000, and ours exactly at base `10000^(h / (h - 1))` with h = E / 2."""
    positions, half = torch.arange(200), width // 2
    theirs = table(200, width)
    plain = relpos.functional.sinusoidal_table(positions, width, layout="concatenated")
    assert (plain - theirs).abs().max() > 0.1
    base = 10000.0 ** (half / (half - 1))
    assert_near(relpos.functional.sinusoidal_table(positions, width, base=base, layout="concatenated"), theirs, "table")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_opt(side: str, dtype: torch.dtype) -> None:
    """OPT counts real tokens and adds 2; pads read row 1 there and the row of position 0 here, so real tokens only."""
    embedding = randomised(OPTLearnedPositionalEmbedding(12, 6), dtype)
    weight, x = embedding.get_parameter("weight"), inputs(3, 12, 6, dtype)
    real = padding([12, 7, 1], 12, side)
    scheme = with_tables(relpos.LearnedAbsolute(6, max_len=14, offset=2), table=weight)
    assert_agree(
        lambda: scheme.embed(x, relpos.Positions.from_mask(real))[real],
        lambda: (x + embedding(real.long()))[real],
        {"table": weight, "x": x},
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_opt_explicit_positions(dtype: torch.dtype) -> None:
    embedding = randomised(OPTLearnedPositionalEmbedding(12, 6), dtype)
    weight, x = embedding.get_parameter("weight"), inputs(2, 4, 6, dtype)
    ids = torch.tensor([[3, 4, 11, 0], [9, 1, 1, 5]])
    scheme = with_tables(relpos.LearnedAbsolute(6, max_len=14, offset=2), table=weight)
    assert_agree(
        lambda: scheme.embed(x, relpos.Positions.explicit(ids, ids)),
        lambda: x + embedding(None, position_ids=ids),
        {"table": weight, "x": x},
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cached", [0, 5])
def test_bart(cached: int, dtype: torch.dtype) -> None:
    """BART counts all tokens, after those in the cache."""
    embedding = randomised(BartLearnedPositionalEmbedding(12, 6), dtype)
    weight, x = embedding.get_parameter("weight"), inputs(3, 7, 6, dtype)
    scheme = with_tables(relpos.LearnedAbsolute(6, max_len=14, offset=2), table=weight)
    positions = relpos.Positions.arange(7, cached + 7, query_start=cached)
    assert_agree(
        lambda: scheme.embed(x, positions),
        lambda: x + embedding(torch.zeros(3, 7, dtype=torch.long), cached),
        {"table": weight, "x": x},
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pad", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_roberta(side: str, pad: int, dtype: torch.dtype) -> None:
    """RoBERTa begins behind its padding id: the whole embedding layer, from token ids, at real tokens."""
    config = RobertaConfig(
        hidden_size=6, num_attention_heads=1, vocab_size=20, max_position_embeddings=16, pad_token_id=pad
    )
    layer = randomised(RobertaEmbeddings(config), dtype)
    real = padding([11, 6, 1], 11, side)
    tokens = torch.randint(pad + 1, 20, (3, 11)).masked_fill(~real, pad)
    weight = layer.get_parameter("position_embeddings.weight")
    scheme = with_tables(relpos.LearnedAbsolute(6, max_len=16, offset=pad + 1), table=weight)

    def ours() -> Tensor:
        words = layer.get_submodule("word_embeddings")(tokens)
        types = layer.get_submodule("token_type_embeddings")(torch.zeros_like(tokens))
        embedded = scheme.embed(words + types, relpos.Positions.from_mask(real))
        normed: Tensor = layer.get_submodule("LayerNorm")(embedded)
        return normed[real]

    assert_agree(ours, lambda: layer(tokens)[real], dict(layer.named_parameters()))


def test_rows_as_reported() -> None:
    """Case F8: the very rows, read off tables that hold their own row numbers."""
    numbers = torch.arange(16.0)[:, None]
    offset_2 = with_tables(relpos.LearnedAbsolute(1, max_len=16, offset=2), table=numbers)
    nothing = torch.zeros(1, 5, 1)
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    opt = OPTLearnedPositionalEmbedding(14, 1)
    opt.weight.data.copy_(numbers)
    assert opt(mask).flatten().tolist() == [1, 1, 2, 3, 4]
    assert offset_2.embed(nothing, relpos.Positions.from_mask(mask)).flatten().tolist()[2:] == [2, 3, 4]

    ids = torch.tensor([[8, 9, 1]])
    assert RobertaEmbeddings.create_position_ids_from_input_ids(ids, 1).tolist() == [[2, 3, 1]]
    roberta = offset_2.embed(nothing[:, :3], relpos.Positions.from_mask(ids.ne(1)))
    assert roberta.flatten().tolist()[:2] == [2, 3]
    assert offset_2.embed(nothing[:, :3]).flatten().tolist() == [2, 3, 4]  # BART
