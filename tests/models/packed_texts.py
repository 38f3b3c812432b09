"""An encoder and batches of texts of different lengths."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from drivetrain.models.networks import text_encoder
from tests import reports

LENGTHS = [3, 40, 7, 7, 1, 25]
ALIKE = ("camembert", "data2vec-text", "ernie", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
FAMILIES = reports.FAMILIES | dict.fromkeys(ALIKE, reports.SIZES)
FAMILIES |= {"electra": reports.SIZES | {"embedding_size": 16}, "electra that widens": reports.FAMILIES["electra"]}
RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


def build_network(
    family: str = "bert", pooling: Literal["cls", "mean", "max"] = "mean", dropout: float = 0.0
) -> text_encoder.TextNetwork:
    torch.manual_seed(0)
    config = {"model_type": family.split()[0], "vocab_size": 50, **FAMILIES[family], **dict.fromkeys(RATES, dropout)}
    text_network = text_encoder.build(config=config, outputs={"one": 3, "two": 2}, pooling=pooling, dropout=dropout)
    assert isinstance(text_network, text_encoder.TextNetwork)
    return text_network.train()


def make_batch(lengths: list[int] = LENGTHS) -> tuple[Tensor, Tensor]:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    torch.manual_seed(1)
    return torch.randint(5, 50, mask.shape) * mask, mask


def forward_backward(network_module: nn.Module, call: Any, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """All outputs, and the gradient of a loss over them."""
    network_module.zero_grad()
    torch.manual_seed(2)
    outputs = torch.cat(list(call(*inputs).values()), dim=1)
    outputs.float().square().sum().backward()
    return outputs.detach(), torch.cat([p.grad.flatten() for p in network_module.parameters() if p.grad is not None])


def assert_close(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))
