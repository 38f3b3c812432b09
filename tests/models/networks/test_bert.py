"""Our encoder computes the same bits as the transformers library, so it can resume runs that were trained with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from drivetrain.models.networks import bert, text_encoder
from drivetrain.pretrained import families
from tests.models.packed_texts import forward_backward, make_batch

CONFIG = families.make_bert_config(vocabulary=50, pad=0, longest=60, layers=2, width=32, heads=4, dropout=0.1)


def build(monkeypatch: pytest.MonkeyPatch, *, ours: bool) -> text_encoder.TextNetwork:
    if not ours:
        monkeypatch.setattr(bert, "can_build", lambda config: False)
    torch.manual_seed(0)
    network = text_encoder.build(config=CONFIG, outputs={"one": 3, "two": 2}, pooling="mean", dropout=0.1)
    assert isinstance(network, text_encoder.TextNetwork)
    assert isinstance(network.encoder, bert.Bert) == ours
    return network.train()


@pytest.mark.parametrize("lengths", [[3, 40, 7, 1], [5, 5]])
def test_weights_outputs_and_gradients_are_those_of_transformers(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    inputs, results = make_batch(lengths), []
    for ours in (True, False):
        network: Any = build(monkeypatch, ours=ours)
        values: list[Tensor] = [*network.state_dict().values(), torch.get_rng_state()]
        for call in (network, network.packed):
            values += [*forward_backward(network, call, inputs), torch.get_rng_state()]
        values += forward_backward(network.eval(), network, inputs)
        results.append((list(network.state_dict()), values))
    (names, values), (their_names, their_values) = results
    assert names == their_names
    assert all(torch.equal(*pair) for pair in zip(values, their_values, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "roberta"},
        {"type_vocab_size": 2},
        {"attention_probs_dropout_prob": 0.1},
        {"hidden_act": "relu"},
        {"is_decoder": True},
    ],
)
def test_another_bert_is_one_of_transformers(change: dict[str, object]) -> None:
    assert bert.can_build(CONFIG)
    assert not bert.can_build(CONFIG | change)
