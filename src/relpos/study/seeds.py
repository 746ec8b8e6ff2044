"""Independent random streams from one seed."""

import hashlib

import torch


def derive(purpose: str, *numbers: int) -> int:
    """A 63-bit seed from a purpose and numbers.

    A hash rather than a sum keeps streams apart: with `seed + step`, step 1 of seed 0 would draw the batch of step 0
    of seed 1.
    """
    text = ":".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(purpose: str, *numbers: int) -> torch.Generator:
    """A CPU generator that starts from `derive(purpose, *numbers)`."""
    return torch.Generator().manual_seed(derive(purpose, *numbers))
