"""A plain decoder-only Transformer over bytes, in which nothing but the position scheme differs between trials."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

import relpos
from relpos.schemes import Scheme
from relpos.schemes.absolute import Absolute
from relpos.study.config import TrialConfig
from relpos.study.presets import build_scheme
from relpos.study.seeds import derive, generator

VOCABULARY = 256


class Block(nn.Module):
    """Pre-norm attention and a GELU layer four times as wide, each added to what it read."""

    def __init__(self, width: int, heads: int, scheme: Scheme | None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = relpos.RelativeAttention(width, heads, scheme, is_causal=True)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        """The stream after the block; position `t` depends on the inputs up to `t` only."""
        x = x + self.attention(self.attention_norm(x))
        change: Tensor = self.mlp(self.mlp_norm(x))
        return x + change


class ByteLM(nn.Module):
    """Bytes in, logits of the next byte out.

    An absolute scheme is added to the byte embeddings once; a relative one stands in every block with a table of its
    own, as in the models that released the schemes' tables per layer.
    """

    def __init__(self, config: TrialConfig) -> None:
        super().__init__()
        shape, length = config.recipe.shape, config.recipe.length

        def build() -> Scheme:
            return build_scheme(config.scheme, width=shape.width, heads=shape.heads, length=length)

        first = build()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.absolute = first if isinstance(first, Absolute) else None
        schemes = [None] * shape.layers if self.absolute else [first, *(build() for _ in range(shape.layers - 1))]
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads, scheme) for scheme in schemes)
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY)

    def forward(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Logits of the byte that follows each input byte."""
        x = self._embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def attention_inputs(
        self, tokens: Int64[Tensor, "B T"]
    ) -> Iterator[tuple[relpos.RelativeAttention, Float[Tensor, "B T E"]]]:
        """Each block's attention module and what it reads, first block first."""
        x = self._embed(tokens)
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block.attention, block.attention_norm(x)
            x = block(x)

    def _embed(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T E"]:
        x: Tensor = self.embedding(tokens)
        return x if self.absolute is None else self.absolute.embed(x)

    def position_parameters(self) -> dict[str, nn.Parameter]:
        """The learned parameters that belong to the position scheme, by name."""
        schemes = [module for module in self.modules() if isinstance(module, Scheme)]
        owned = {id(parameter) for scheme in schemes for parameter in scheme.parameters()}
        return {name: parameter for name, parameter in self.named_parameters() if id(parameter) in owned}

    def max_length(self) -> int | None:
        """The longest input for which every position is defined, or None where there is no limit."""
        return self.absolute.max_len if isinstance(self.absolute, relpos.LearnedAbsolute) else None


def build_model(config: TrialConfig) -> ByteLM:
    """Build the network; the parts that every scheme shares get the same values from the same seed.

    A scheme draws its tables from the global generator, so the shared parts are drawn again, in the order of their
    names, from a generator that the scheme does not touch. The caller's random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive("scheme", config.seed))
        model = ByteLM(config)
    stream = generator("network", config.seed)
    positions = model.position_parameters()
    for name, parameter in sorted(model.named_parameters()):
        if name in positions:
            continue
        if parameter.dim() > 1:
            # Byte embeddings on a scale where both absolute schemes can be heard: at 0.04 the sinusoids drown the bytes
            # (perplexity 9.9; 6.1 at 0.3 and at 1), at 1 the bytes drown the learned table (7.5; 6.0 at 0.3).
            std = 0.3 if name == "embedding.weight" else 0.5 / math.sqrt(parameter.shape[-1])
            nn.init.normal_(parameter, std=std, generator=stream)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model
