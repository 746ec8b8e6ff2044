"""Pure functions under the schemes: which table row a distance reads, slopes, frequencies, rotation."""

from relpos.functional.buckets import deberta_bucket as deberta_bucket
from relpos.functional.buckets import deberta_row as deberta_row
from relpos.functional.buckets import shaw_index as shaw_index
from relpos.functional.buckets import t5_bucket as t5_bucket
from relpos.functional.rotary import apply_rotary as apply_rotary
from relpos.functional.rotary import rope_inv_freq as rope_inv_freq
from relpos.functional.sinusoids import sinusoidal_table as sinusoidal_table
from relpos.functional.slopes import alibi_slopes as alibi_slopes
