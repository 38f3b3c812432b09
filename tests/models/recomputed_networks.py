"""Networks that compute activations twice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drivetrain.models.networks import cnn, text_encoder

ENCODER = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}


def build_encoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    network = text_encoder.build(config=ENCODER, outputs={"": 3}, pooling="mean", dropout=0.1)
    return network, (torch.randint(0, 50, (4, 64)), torch.ones(4, 64, dtype=torch.int64))


def build_resnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    network = cnn.build("resnet18", channels=3, classes=3, image_size=32, width=8, dropout=0.2)
    return network, (torch.randn(4, 3, 64, 64),)
