"""Tiny random models of every family, and what to call them with. A family adds its models here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput

VOCABULARY = 61
WIDTH, HEADS, LAYERS = 32, 4, 2

ENCODER, DECODER, BOTH = "encoder", "decoder", "encoder and decoder"


@dataclass(frozen=True)
class Tiny:
    """A model to build, with random weights large enough that positions matter.

    Attributes:
        build: the model, on its default attention.
        kind: ENCODER, DECODER (causal, generates) or BOTH.
        longest: the longest input that the model can take, None where any length runs.
        patched: how many modules `patch` changes.
        pad: the token that stands for padding.
    """

    build: Callable[[], nn.Module]
    kind: str
    patched: int
    longest: int | None = None
    pad: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def model(self, dtype: torch.dtype = torch.float32) -> Any:
        """The model in evaluation mode, without dropout."""
        model = self.build().eval().to(dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:  # scores of a few units; tables of a bias as they should be felt
                    small = parameter.shape[-1] if "bias" not in name else 1
                    parameter.normal_(std=small**-0.5)
        return model


def t5(config: type, model: type, **options: Any) -> Callable[[], nn.Module]:
    """A model of the T5 family; distances share buckets from 5 on and the last bucket from 20 on."""
    return lambda: model(
        config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=WIDTH // HEADS,
            d_ff=48,
            num_layers=LAYERS,
            num_heads=HEADS,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=20,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            eos_token_id=None,
            **options,
        )
    )


#: What all models of the DeBERTa families here have in common.
DEBERTA = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 7,
}


class Hidden(hf.LongT5EncoderModel):
    """LongT5's encoder, which transformers gave no head: its hidden states are what is compared."""

    def forward(self, *given: Any, **options: Any) -> Any:
        """Hidden states in place of logits."""
        output = super().forward(*given, **options)
        return TokenClassifierOutput(logits=output.last_hidden_state, attentions=output.attentions)


def deberta_v2(**options: Any) -> Callable[[], nn.Module]:
    """DeBERTa v2 or v3 for token classification: logits for every token."""
    v3 = {"position_buckets": 8, "max_relative_positions": -1, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    return lambda: hf.DebertaV2ForTokenClassification(hf.DebertaV2Config(**DEBERTA | v3 | options))


def deberta(**options: Any) -> Callable[[], nn.Module]:
    """DeBERTa v1 for token classification; distances share a row from 9 on."""
    return lambda: hf.DebertaForTokenClassification(
        hf.DebertaConfig(**DEBERTA | {"max_relative_positions": 9} | options)
    )


def mpnet(**options: Any) -> Callable[[], nn.Module]:
    """MPNet for token classification; its absolute positions end past every length tried here."""
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 48,
        "max_position_embeddings": 5100,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_labels": 7,
    }
    return lambda: hf.MPNetForTokenClassification(hf.MPNetConfig(**defaults | options))


class Speech(hf.Wav2Vec2BertForCTC):
    """A speech model whose frames are made of tokens, so that it takes what the others take."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Any:
        """The logits for sinusoids whose frequencies are the tokens."""
        frames = torch.sin(input_ids[..., None] * torch.arange(1, 9)).to(self.dtype)
        return super().forward(frames, attention_mask=attention_mask, **options)


def wav2vec2_bert(**options: Any) -> Callable[[], nn.Module]:
    """Wav2Vec2-BERT with vectors for distances from -6 to 3."""
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 48,
        "feature_projection_input_dim": 8,
        "position_embeddings_type": "relative_key",
        "left_max_position_embeddings": 6,
        "right_max_position_embeddings": 3,
        "conv_depthwise_kernel_size": 3,
        "apply_spec_augment": False,
        "layerdrop": 0.0,
    }
    dropouts = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
    none = dict.fromkeys((*dropouts, "conformer_conv_dropout"), 0.0)
    return lambda: Speech(hf.Wav2Vec2BertConfig(**defaults | none | options))


def bloom() -> nn.Module:
    return hf.BloomForCausalLM(
        hf.BloomConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, bos_token_id=None, eos_token_id=None
        )
    )


def mpt(**options: Any) -> Callable[[], nn.Module]:
    """MPT with the longest of the lengths that are compared with transformers' own."""
    defaults = {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": 80}
    return lambda: hf.MptForCausalLM(hf.MptConfig(**defaults | options))


def falcon(**options: Any) -> Callable[[], nn.Module]:
    """Falcon with ALiBi, whose bias counts once also where transformers are asked for probabilities."""
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "alibi": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }

    def build() -> nn.Module:
        model = hf.FalconForCausalLM(hf.FalconConfig(**defaults | options))
        for layer in model.transformer.h:
            layer.self_attention.register_forward_pre_hook(count_bias_once, with_kwargs=True)
        return model

    return build


def count_bias_once(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A matrix of pairs holds the bias of Falcon already, and transformers' written-out attention adds it again."""
    if options["attention_mask"].dim() == 4:
        options = options | {"alibi": torch.zeros_like(options["alibi"])}
    return given, options


TINY: dict[str, Tiny] = {
    "t5": Tiny(t5(hf.T5Config, hf.T5ForConditionalGeneration), BOTH, 7),
    "t5 encoder": Tiny(t5(hf.T5Config, hf.T5ForTokenClassification, num_labels=7), ENCODER, 3),
    "mt5": Tiny(t5(hf.MT5Config, hf.MT5ForConditionalGeneration), BOTH, 7),
    "umt5": Tiny(t5(hf.UMT5Config, hf.UMT5ForConditionalGeneration), BOTH, 7),
    "longt5": Tiny(t5(hf.LongT5Config, hf.LongT5ForConditionalGeneration, local_radius=5), BOTH, 7),
    "longt5 encoder": Tiny(t5(hf.LongT5Config, Hidden, local_radius=5), ENCODER, 3),
    "longt5 encoder, past its buckets": Tiny(t5(hf.LongT5Config, Hidden, local_radius=25), ENCODER, 3),
    "longt5 encoder, alone": Tiny(t5(hf.LongT5Config, Hidden, local_radius=0), ENCODER, 3),
    "deberta v3": Tiny(deberta_v2(), ENCODER, 3),
    "deberta v2 with convolution": Tiny(deberta_v2(conv_kernel_size=3, conv_act="gelu"), ENCODER, 4),
    "deberta v2, tables of its own": Tiny(deberta_v2(share_att_key=False, max_relative_positions=12), ENCODER, 3),
    "deberta v2, c2p": Tiny(deberta_v2(pos_att_type=["c2p"], share_att_key=False), ENCODER, 3),
    "deberta v2, no buckets": Tiny(deberta_v2(position_buckets=-1, max_relative_positions=9), ENCODER, 3),
    "deberta v1": Tiny(deberta(), ENCODER, 3),
    "deberta v1, p2p in the list": Tiny(deberta(pos_att_type=["p2c", "p2p"]), ENCODER, 3),
    "mpnet": Tiny(mpnet(), ENCODER, 4, pad=1),
    "wav2vec2-bert": Tiny(wav2vec2_bert(), ENCODER, 2),
    "bloom": Tiny(bloom, DECODER, 2),
    "mpt": Tiny(mpt(), DECODER, 4),
    "mpt, clipped": Tiny(mpt(attn_config={"clip_qkv": 0.5, "softmax_scale": 0.2}), DECODER, 4),
    "falcon": Tiny(falcon(multi_query=False, parallel_attn=False, bias=True), DECODER, 2),
    "falcon, one key head": Tiny(falcon(), DECODER, 2),
    "falcon, new": Tiny(falcon(new_decoder_architecture=True, num_kv_heads=2), DECODER, 2),
}


def inputs(tiny: Tiny, batch: int, length: int, padding: str | None = None) -> dict[str, Tensor]:
    """Random tokens; with `padding` ("left" or "right") each row after the first is a third shorter."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    given = {"input_ids": ids, **tiny.options}
    if padding is not None:
        mask = torch.ones(batch, length, dtype=torch.long)
        short = slice(0, length // 3) if padding == "left" else slice(length - length // 3, length)
        mask[1:, short] = 0
        given["attention_mask"] = mask
        ids.masked_fill_(mask == 0, tiny.pad)
    if tiny.kind == BOTH:
        given["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, max(1, length // 2)), generator=generator)
    return given
