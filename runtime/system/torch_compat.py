"""All differences between torch versions that the code depends on."""

from __future__ import annotations

import torch


def casts_keep_gradients() -> bool:
    """Whether a weight cast by autocast under `no_grad` gets its gradient when the cached cast is reused.

    Not in older versions (pytorch issue 158232), where a block recomputed in the backward pass would not be trained.
    """
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 13)
