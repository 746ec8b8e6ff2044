"""Drop-in modules: the articles' reusable bias, and multi-head attention with a position scheme and a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from relpos import errors
from relpos.arguments import list_schemes
from relpos.attention import attention
from relpos.positions import Positions
from relpos.schemes import Scheme, make


class RelativeBias(nn.Module):
    """A bias to add to attention scores, by the name of a scheme: the reusable module of the articles.

    Args:
        num_heads: heads H.
        mode: a scheme whose bias is one number for each head and pair: "t5", "alibi", "shaw_bias", "fire".
        options: its further arguments, as in `relpos.make`.

    State: `scheme.*`, the tables of the scheme.
    Cost: `H Tq Tk` numbers. Where attention itself is yours to call, `relpos.attention` needs no such matrix.

    >>> RelativeBias(12, mode="t5", bidirectional=False)(5).shape
    torch.Size([12, 5, 5])
    """

    def __init__(self, num_heads: int, mode: str = "t5", **options: object) -> None:
        super().__init__()
        self.scheme = make(mode, num_heads=num_heads, **options)
        self.scheme.bias(1)  # refuses, here and not at the first call, a scheme that has no such matrix

    def forward(
        self, query_len: int, key_len: int | None = None, query_start: int | Tensor | None = None
    ) -> Float[Tensor, "*b H Tq Tk"]:
        """`[H, Tq, Tk]`; without a start, the last query stands at the last key."""
        return self.scheme.bias(query_len, key_len, query_start)


@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values of the tokens so far, before any rotation; an empty one begins a sequence.

    `RelativeAttention` returns a new cache and leaves the old one as it was.

    >>> KVCache().length
    0
    """

    key: Float[Tensor, "B G T D"] | None = None
    value: Float[Tensor, "B G T D"] | None = None

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return 0 if self.key is None else self.key.shape[2]

    def tokens(self) -> tuple[Float[Tensor, "B G T D"], Float[Tensor, "B G T D"]]:
        """Keys and values of a cache that holds some."""
        if self.key is None or self.value is None:
            raise errors.value("KVCache.tokens", "an empty cache", "a cache with tokens", "append to it first.")
        return self.key, self.value

    def append(self, key: Float[Tensor, "B G t D"], value: Float[Tensor, "B G t D"]) -> KVCache:
        """The cache with these tokens after its own."""
        if self.key is None or self.value is None:
            return KVCache(key, value)
        if self.key.shape[:2] != key.shape[:2] or self.key.shape[3] != key.shape[3]:
            raise errors.value(
                "KVCache.append",
                f"keys {list(key.shape)} after {list(self.key.shape)}",
                "the same batch, heads and width",
                "keep one cache for each layer and batch.",
            )
        return KVCache(torch.cat((self.key, key), dim=2), torch.cat((self.value, value), dim=2))


class RelativeAttention(nn.Module):
    """Multi-head attention with a position scheme: self-attention, cross-attention, and decoding with a cache.

    Args:
        embed_dim: width E of input and output.
        num_heads: query heads H; H divides E.
        scheme: a relative scheme, a list of them, or None. Absolute schemes act on the input, before this module.
        is_causal: keys after a query are hidden from it.
        num_kv_heads: key and value heads G (grouped heads); as many as query heads if None.
        dropout: on the probabilities, in training only.
        bias: whether the four projections have one.

    State: `query_proj`, `key_proj`, `value_proj`, `output_proj`, and the tables of the scheme.

    >>> import relpos
    >>> layer = RelativeAttention(32, 4, relpos.Rotary(head_dim=8), is_causal=True)
    >>> y, cache = layer(torch.randn(1, 5, 32), cache=KVCache())   # prefill
    >>> y, cache = layer(torch.randn(1, 1, 32), cache=cache)       # one more token
    >>> cache.length
    6
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        scheme: Scheme | Sequence[Scheme] | None = None,
        *,
        is_causal: bool = False,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        errors.positive_int("RelativeAttention", embed_dim=embed_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        for what, whole, part in (("embed_dim", embed_dim, num_heads), ("num_heads", num_heads, num_kv_heads)):
            if whole % part:
                raise errors.value(
                    "RelativeAttention", f"{what}={whole} for {part} heads", f"a multiple of {part}", "change one."
                )
        errors.flags("RelativeAttention", is_causal=is_causal, bias=bias)
        errors.finite("RelativeAttention", dropout=dropout)
        if not 0 <= dropout <= 1:
            raise errors.value("RelativeAttention", f"dropout={dropout}", "0 <= dropout <= 1", "pass a probability.")
        schemes = list_schemes("RelativeAttention", scheme, num_heads, embed_dim // num_heads)
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
        self.is_causal, self.dropout = is_causal, dropout
        self.scheme = scheme if isinstance(scheme, Scheme) else nn.ModuleList(schemes)
        self.query_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=bias)
        self.value_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=bias)
        self.output_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "B Tq E"],
        context: Float[Tensor, "B Tk E"] | None = None,
        cache: KVCache | None = None,
        *,
        positions: Positions | None = None,
        key_mask: Bool[Tensor, "B Tk"] | None = None,
    ) -> Float[Tensor, "B Tq E"] | tuple[Float[Tensor, "B Tq E"], KVCache]:
        """Attend from `x` to itself, to `context`, or to the cached tokens and itself.

        Args:
            x: `[B, Tq, E]`.
            context: `[B, Tk, E]` for cross-attention, whose relative schemes need `positions`: two sequences of equal
                length do not say by that how they stand to each other.
            cache: an empty or earlier `KVCache`; the tokens of `x` follow the cached ones.
            positions: who stands where; counted from the first cached token if None.
            key_mask: `[B, cached + Tq]` (or `[B, Tk]` with context), True = a real token.

        Returns:
            `y [B, Tq, E]`, or `(y, cache)` with the tokens of `x` appended where a cache was given.
        """
        if not isinstance(cache, KVCache | None):
            raise errors.wrong_type(
                "RelativeAttention", f"cache of {type(cache).__name__}", "a KVCache or None", "begin with KVCache()."
            )
        if cache is not None and context is not None:
            raise errors.value(
                "RelativeAttention", "context and cache together", "one of them", "cross-attention keeps no cache."
            )
        source = x if context is None else context
        self._check(x=x, context=source)
        query = self._split(self.query_proj(x), self.num_heads)
        key = self._split(self.key_proj(source), self.num_kv_heads)
        value = self._split(self.value_proj(source), self.num_kv_heads)
        if cache is not None:
            past = cache.length
            cache = cache.append(key, value)
            key, value = cache.tokens()
            if positions is None:
                positions = Positions.arange(query.shape[2], key.shape[2], query_start=past)
        elif context is not None and positions is None:
            positions = replace(Positions.arange(query.shape[2], key.shape[2]), anchored=False)
        mixed = attention(
            query,
            key,
            value,
            self._schemes(),
            is_causal=self.is_causal,
            positions=positions,
            key_mask=key_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        y: Tensor = self.output_proj(mixed.transpose(1, 2).flatten(2))
        return y if cache is None else (y, cache)

    def _check(self, **inputs: Tensor) -> None:
        width = self.query_proj.in_features
        for name, tensor in inputs.items():
            if tensor.dim() != 3 or tensor.shape[-1] != width:
                raise errors.value(
                    "RelativeAttention",
                    f"{name} of shape {list(tensor.shape)}",
                    f"[batch, tokens, {width}]",
                    f"reshape {name}.",
                )

    def _schemes(self) -> list[Scheme]:
        own = [self.scheme] if isinstance(self.scheme, Scheme) else self.scheme
        return [one for one in own if isinstance(one, Scheme)]

    def _split(self, x: Float[Tensor, "B T E"], heads: int) -> Float[Tensor, "B h T D"]:
        return x.reshape(*x.shape[:2], heads, self.head_dim).transpose(1, 2)
