"""The optimizers of job files."""

from __future__ import annotations

from typing import Any

import torch

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "{name: adamw, lr: 0.01}": (torch.optim.AdamW, {}),
    "{name: adam, lr: 0.01, amsgrad: true}": (torch.optim.Adam, {"amsgrad": True}),
    "{name: sgd, lr: 0.01, momentum: 0.9, nesterov: true}": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
}
