"""How a sequence draws the tokens of a draft."""

from __future__ import annotations

import numpy as np

#: A row of what the step `choose` reads. `key` is that of the random numbers, `position` of the first token
#: that is drawn; a temperature of 0 takes the largest logit, 0 is all for `top_k`.
SAMPLING = np.dtype(
    [
        ("key", np.uint64),
        ("position", np.int32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("unused", np.int32),
    ]
)
