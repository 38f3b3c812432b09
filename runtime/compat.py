"""The differences between torch versions, all in one place."""

from __future__ import annotations

import torch


def allow_tf32() -> None:
    """Let fp32 matrix products and convolutions use TF32, through the one API that this torch has."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = "tf32"
        cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
        cudnn.rnn.fp32_precision = "tf32"  # type: ignore[attr-defined]
    else:
        matmul.allow_tf32 = True
        cudnn.allow_tf32 = True


def tf32_allowed() -> bool:
    """Whether fp32 matrix products may use TF32."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)


def casts_keep_gradients() -> bool:
    """Whether a weight that autocast has cast under `no_grad` gets its gradient when the cast is used again.

    Not so in older versions (pytorch issue 158232), where a block recomputed in the backward pass would stay untrained.
    """
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 13)
