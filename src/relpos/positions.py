"""Who stands where: the position of every query and key, and which document it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from relpos import errors


@dataclass(frozen=True, eq=False)
class Positions:
    r"""Positions of queries and keys, int64, in whichever order they stand in memory.

    The distance between query i and key j is `key[j] - query[i]`: the past is negative. Tokens of different
    documents never see each other; document -1 holds padding, which neither sees nor is seen.

    Attributes:
        query: `[Tq]`, or `[B, Tq]` where rows of the batch differ.
        key: `[Tk]` or `[B, Tk]`.
        query_document, key_document: int64 of the same shapes, or None where all tokens are one document.
        anchored: False where only the lengths are known, so that nobody said where the queries stand among the keys.
        offset: what makes `key[j] - query[i] == offset + j - i` for every pair of one document: an int, or int64 `[B]`
            where rows differ. None where there is no such number (gaps, another order) or nobody has looked: it is
            never guessed. A distance is then a place in memory, which the fast backends live on.

    >>> Positions.arange(2, 5, query_start=3).distance().tolist()
    [[-3, -2, -1, 0, 1], [-4, -3, -2, -1, 0]]
    """

    query: Int[Tensor, "*b Tq"]
    key: Int[Tensor, "*b Tk"]
    query_document: Int[Tensor, "*b Tq"] | None = None
    key_document: Int[Tensor, "*b Tk"] | None = None
    anchored: bool = True
    offset: int | Int[Tensor, " b"] | None = None

    @classmethod
    def arange(
        cls,
        query_len: int,
        key_len: int | None = None,
        query_start: int | Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Positions:
        """Keys at 0, 1, ..., `key_len - 1`; queries at `query_start`, `query_start + 1`, ...

        Args:
            query_len: number of queries.
            key_len: number of keys; as many as queries if None.
            query_start: position of the first query: an int, a 0-d integer tensor, or one of shape `[B]` (a start for
                each row of the batch). None puts the last query at the last key, `key_len - query_len`.
            device: where the positions are; that of `query_start` where it is a tensor, else torch's default.

        >>> Positions.arange(1, 4).query.tolist()
        [3]
        """
        key_len = query_len if key_len is None else key_len
        errors.whole("Positions.arange", query_len=query_len, key_len=key_len)
        for name, length in (("query_len", query_len), ("key_len", key_len)):
            if length < 0:
                raise errors.value("Positions.arange", f"{name}={length}", f"{name} >= 0", "pass a length.")
        anchored = query_start is not None or query_len == key_len
        start = key_len - query_len if query_start is None else query_start
        if isinstance(start, int) and not isinstance(start, bool):
            return cls._counted((start, start + query_len), (0, key_len), anchored, device)
        if not isinstance(start, Tensor):
            raise errors.wrong_type(
                "Positions.arange", f"query_start={start!r}", "an int or an integer tensor", "pass a whole number."
            )
        errors.integers("Positions.arange", query_start=start)
        if start.dim() > 1:
            raise errors.value(
                "Positions.arange",
                f"query_start of shape {list(start.shape)}",
                "an int, a 0-d tensor, or one of shape [B]",
                "pass one start for each row of the batch.",
            )
        start = start.long() if device is None else start.long().to(device)
        query = start[..., None] + torch.arange(query_len, device=start.device)
        key = torch.arange(key_len, device=start.device)
        return cls(query=query, key=key, anchored=anchored, offset=-start.reshape(-1))

    @classmethod
    def _counted(
        cls, query: tuple[int, int], key: tuple[int, int], anchored: bool, device: torch.device | str | None
    ) -> Positions:
        """Positions from first to before last, as tensors where somebody looks: a decoded token needs neither."""
        self = cls.__new__(cls)
        fields = {"query_document": None, "key_document": None, "anchored": anchored, "offset": key[0] - query[0]}
        for name, field in (*fields.items(), ("_ranges", {"query": query, "key": key}), ("_device", device)):
            object.__setattr__(self, name, field)
        return self

    def __getattr__(self, name: str) -> Any:
        """Counted positions, anew each time: a tensor made in inference mode must not be kept for training."""
        ranges = vars(self).get("_ranges", {})
        if name not in ranges:
            raise AttributeError(f"'Positions' object has no attribute {name!r}")
        return torch.arange(*ranges[name], device=vars(self)["_device"])

    @classmethod
    def packed(cls, cu_seqlens: Int[Tensor, " documents_plus_1"]) -> Positions:
        """Documents end to end, each counted from 0, the same for every row of the batch.

        Args:
            cu_seqlens: cumulative lengths `0, n_1, n_1 + n_2, ..., T`, as flash-attn takes them.

        >>> Positions.packed(torch.tensor([0, 2, 5])).query.tolist()
        [0, 1, 0, 1, 2]
        """
        errors.integers("Positions.packed", cu_seqlens=cu_seqlens)
        if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens[0] != 0 or (cu_seqlens.diff() < 0).any():
            raise errors.value(
                "Positions.packed",
                f"cu_seqlens={cu_seqlens.tolist()}",
                "cumulative lengths in one dimension: 0 first, never falling, the total length last",
                "pass torch.tensor([0, n1, n1 + n2, ...]).",
            )
        lengths = cu_seqlens.long().diff()
        document = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        position = torch.arange(len(document), device=lengths.device) - cu_seqlens.long()[document]
        return cls(position, position, document, document, offset=0)

    @classmethod
    def explicit(cls, query: Int[Tensor, "*b Tq"], key: Int[Tensor, "*b Tk"]) -> Positions:
        """Positions as given: `[T]` or `[B, T]`, any order, any gaps, negative ones too.

        >>> Positions.explicit(torch.tensor([7]), torch.tensor([5, 6, 7])).distance().tolist()
        [[-2, -1, 0]]
        """
        errors.integers("Positions.explicit", query=query, key=key)
        for name, tensor in (("query", query), ("key", key)):
            if tensor.dim() not in (1, 2):
                raise errors.value(
                    "Positions.explicit",
                    f"{name} of shape {list(tensor.shape)}",
                    "[T], or [B, T]",
                    "pass one position for each token.",
                )
        if query.dim() == key.dim() == 2 and len(query) != len(key) and 1 not in (len(query), len(key)):
            raise errors.value(
                "Positions.explicit",
                f"query {list(query.shape)} and key {list(key.shape)}",
                "one batch size",
                "pass a row of positions for each row of the batch.",
            )
        query, key = query.long(), key.long()
        return cls(query, key, offset=_offset(query, key))

    @classmethod
    def from_mask(cls, mask: Tensor) -> Positions:
        """Self-attention of a padded batch: valid tokens counted from 0 in each row, padding at 0 and out of sight.

        Args:
            mask: `[B, T]` of 0 and 1 (bool or integer), 1 = a valid token; padding on either side or in between.

        >>> Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1]])).query.tolist()
        [[0, 0, 0, 1, 2]]
        """
        valid = _valid("Positions.from_mask", mask)
        position = (valid.long().cumsum(-1) - 1).masked_fill(~valid, 0)
        document = valid.long() - 1
        # Counting skips a hole, and memory does not.
        runs = valid[..., :1].sum(-1) + (valid[..., 1:] & ~valid[..., :-1]).sum(-1)
        whole = _known(valid) and bool((runs <= 1).all())
        return cls(position, position, document, document, offset=0 if whole else None)

    @classmethod
    def from_position_ids(cls, ids: Int[Tensor, "*b T"], mask: Tensor | None = None) -> Positions:
        """Self-attention over `position_ids`, as data collators give them: a restart begins a new document.

        A token whose position is not one more than that of the token before it begins a document. Tokens outside
        `mask` belong to none, so that padding written as zeros is not read as one-token documents.

        Args:
            ids: integers `[T]` or `[B, T]`.
            mask: the same shape, 0 and 1, 1 = a valid token.

        >>> Positions.from_position_ids(torch.tensor([0, 1, 2, 0, 1])).query_document.tolist()
        [0, 0, 0, 1, 1]
        """
        errors.integers("Positions.from_position_ids", ids=ids)
        if ids.dim() not in (1, 2):
            raise errors.value(
                "Positions.from_position_ids", f"ids of shape {list(ids.shape)}", "[T], or [B, T]", "reshape the ids."
            )
        ids = ids.long()
        restarts = torch.zeros_like(ids)
        restarts[..., 1:] = ids.diff(dim=-1) != 1
        document = restarts.cumsum(-1)
        if mask is not None:
            valid = _valid("Positions.from_position_ids", mask)
            if valid.shape != ids.shape:
                raise errors.value(
                    "Positions.from_position_ids",
                    f"mask of shape {list(mask.shape)} for ids of shape {list(ids.shape)}",
                    "equal shapes",
                    "pass the padding mask of the same tokens.",
                )
            document = document.masked_fill(~valid, -1)
        return cls(ids, ids, document, document, offset=0)

    @property
    def query_len(self) -> int:
        """Number of queries."""
        return self.query.shape[-1]

    @property
    def key_len(self) -> int:
        """Number of keys."""
        return self.key.shape[-1]

    def distance(self) -> Int[Tensor, "*b Tq Tk"]:
        """`key - query` for every pair, int64 `[Tq, Tk]` or `[B, Tq, Tk]`."""
        return self.key[..., None, :] - self.query[..., :, None]

    def same_document(self) -> Bool[Tensor, "*b Tq Tk"] | None:
        """Which pairs are tokens of one document; None where there is only one."""
        if self.query_document is None or self.key_document is None:
            return None
        query, key = self.query_document[..., :, None], self.key_document[..., None, :]
        return (query == key) & (query >= 0)

    def to(self, device: torch.device) -> Positions:
        """The same positions on another device."""
        if self.query.device == device:
            return self

        def move(document: Tensor | None) -> Tensor | None:
            return None if document is None else document.to(device)

        return Positions(
            query=self.query.to(device),
            key=self.key.to(device),
            query_document=move(self.query_document),
            key_document=move(self.key_document),
            anchored=self.anchored,
            offset=self.offset.to(device) if isinstance(self.offset, Tensor) else self.offset,
        )


def _offset(query: Int[Tensor, "*b Tq"], key: Int[Tensor, "*b Tk"]) -> int | Int[Tensor, " b"] | None:
    """`key[0] - query[0]` where both count up by one, token after token."""
    if not _known(query) or not _known(key) or 0 in (query.numel(), key.numel()):
        return None
    if not bool((query.diff(dim=-1) == 1).all() & (key.diff(dim=-1) == 1).all()):
        return None
    offset = key[..., 0] - query[..., 0]
    return int(offset) if offset.dim() == 0 else offset


def _known(numbers: Tensor) -> bool:
    """Whether looking at these numbers is cheap: they are there, on the CPU, and no graph is being recorded."""
    return numbers.device.type == "cpu" and not torch.compiler.is_compiling()


def _valid(call: str, mask: Tensor) -> Bool[Tensor, "*b T"]:
    if not isinstance(mask, Tensor):
        raise errors.wrong_type(call, f"mask of {type(mask).__name__}", "a tensor", "pass the padding mask.")
    if mask.is_floating_point():
        raise errors.wrong_type(call, f"mask of {mask.dtype}", "bool or integers 0 and 1", "pass mask.bool().")
    if mask.dim() not in (1, 2):
        raise errors.value(call, f"mask of shape {list(mask.shape)}", "[T], or [B, T]", "pass the padding mask.")
    if mask.dtype != torch.bool and not mask.is_meta and bool(((mask != 0) & (mask != 1)).any()):
        raise errors.value(call, "a mask with other numbers than 0 and 1", "0 and 1", "pass (mask != 0).")
    return mask.bool()
