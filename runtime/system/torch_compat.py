"""The differences between torch versions, all in one place."""

from __future__ import annotations

import torch


def casts_keep_gradients() -> bool:
    """Whether a weight that autocast has cast under `no_grad` gets its gradient when the cast is used again.

    Not so in older versions (pytorch issue 158232), where a block recomputed in the backward pass would stay untrained.
    """
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 13)
