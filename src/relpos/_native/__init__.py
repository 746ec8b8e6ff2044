"""What a distance adds to a block of scores, and the sums that are its gradient.

torch makes the products; these loops read them by distance. `kernel` calls relpos.c where it was built, `twin` computes
the same in torch. `attention` has relpos.c make everything, products too.
"""

from relpos._native.attention import Attention, attend_whole
from relpos._native.block import Block, numbers
from relpos._native.choice import chosen
from relpos._native.kernel import fingerprint, loops, runs

__all__ = ["Attention", "Block", "attend_whole", "chosen", "fingerprint", "loops", "numbers", "runs"]
