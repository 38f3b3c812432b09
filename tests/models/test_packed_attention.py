"""Packed: outputs and gradients of padded texts, from the real tokens alone; recomputed, in short formats, with dropout."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from drivetrain.models import inspection, packed_attention, recompute
from drivetrain.models.fast_dropout import DropoutFromBits
from drivetrain.system import torch_settings
from tests.axes import each_once
from tests.models.packed_texts import LENGTHS, assert_close, build_network, forward_backward, make_batch


def test_a_host_program_gets_the_attention_of_its_encoder_back() -> None:
    model, texts = build_network(), make_batch()
    attention_name = model.encoder.config._attn_implementation
    with torch_settings.keep_switches():
        forward_backward(model, model.packed, texts)
        assert model.encoder.config._attn_implementation == packed_attention.ATTENTION_NAME != attention_name
    assert model.encoder.config._attn_implementation == attention_name


@pytest.mark.parametrize(
    ("pooling", "lengths", "family"),
    each_once(["mean", "cls", "max"], [LENGTHS, [5, 5], [9], [60] * 12], packed_attention.PACKABLE_ENCODERS),
)
def test_outputs_and_gradients_are_those_of_padded_texts(
    family: str, lengths: list[int], pooling: Literal["cls", "mean", "max"]
) -> None:
    model, texts = build_network(family, pooling), make_batch(lengths)
    padded = forward_backward(model, model, texts)
    assert_close(forward_backward(model, model.packed, texts), padded)
    assert_close(forward_backward(model, model, texts), padded)


def test_frozen_lower_layers_do_not_matter() -> None:
    model, texts = build_network(), make_batch()
    for part in (model.embeddings, model.layers[0]):
        part.requires_grad_(False)
    division = model.split_at_frozen(*texts)
    assert division
    upper_inputs = division.prefix(*texts)
    upper_layers = division.rest.__self__  # type: ignore[attr-defined]
    assert_close(
        forward_backward(model, lambda *_: upper_layers.packed(*upper_inputs), texts),
        forward_backward(model, model, texts),
    )


@pytest.mark.parametrize("family", ["albert", "t5", "electra that widens"])
def test_an_encoder_that_cannot_be_packed_is_detected(family: str) -> None:
    assert inspection.measure_token_bytes(build_network(family)) == 0
    assert inspection.measure_token_bytes(nn.Linear(2, 2)) == 0


def test_an_encoder_that_computes_differently_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inspection.measure_token_bytes(build_network()) > 0
    monkeypatch.setattr(packed_attention, "_gather_rows", lambda rows, index: rows[index.flip(0)])
    assert inspection.measure_token_bytes(build_network()) == 0


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_decoder_is_detected(family: str) -> None:
    """Its tokens see only those before them, which the words of a trial must be able to show."""
    model = build_network(family)
    assert inspection.measure_token_bytes(model) > 0
    model.encoder.config.is_decoder = True
    assert inspection.measure_token_bytes(model) == 0


def test_a_text_without_tokens_does_not_matter() -> None:
    model, texts = build_network(pooling="cls"), make_batch([3, 2, 0])
    outputs = model.packed(*texts)
    assert isinstance(outputs, dict)
    for name, expected in model.packed(*(x[:2] for x in texts)).items():
        torch.testing.assert_close(outputs[name][:2], expected)


def test_the_trial_leaves_nothing_behind() -> None:
    model = build_network(dropout=0.5)
    model.heads.eval()
    state = torch.get_rng_state()
    inspection.measure_token_bytes(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.encoder.training
    assert not model.heads.training
    assert all(p.grad is None for p in model.parameters())


def test_bytes_of_a_token() -> None:
    """Compared with the saved bytes of a long row."""
    model, saved_tensors = build_network(dropout=0.1), {}

    def keep(tensor: Tensor) -> Tensor:
        saved_tensors[tensor.untyped_storage()._cdata] = tensor
        return tensor

    parameter_keys = {p.untyped_storage()._cdata for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.packed(*make_batch([32] * 64))
    activation_bytes = sum(
        x.untyped_storage().nbytes() for key, x in saved_tensors.items() if key not in parameter_keys
    )
    # Attention keeps the square of each text beside, which is what the short texts of the trial have little of.
    assert 0.4 < inspection.measure_token_bytes(model) / (activation_bytes / 2048) < 1.1


def test_a_row() -> None:
    row = packed_attention.lay_out(make_batch([2, 4, 4])[1])
    assert row.token_positions.tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 0, 1]
    assert row.size == 64
    (group,) = row.groups
    assert (group.start, group.end, group.texts, group.longest) == (0, 10, 3, 4)
    assert group.token_positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert group.real is not None
    assert group.real[:, 0, 0].tolist() == [[True] * 4, [True] * 4, [True, True, False, False]]
    assert packed_attention.lay_out(make_batch([4] * 40)[1]).groups[0].real is None


def test_recomputed_layers_are_the_same() -> None:
    texts = make_batch()
    plain_model, recomputed_model = build_network(dropout=0.3), build_network(dropout=0.3)
    recompute.recompute(recomputed_model)
    stored_pass, recomputed_pass = (
        forward_backward(model, model.packed, texts) for model in (plain_model, recomputed_model)
    )
    assert torch.equal(stored_pass[0], recomputed_pass[0])
    assert torch.equal(stored_pass[1], recomputed_pass[1])


def test_in_bf16() -> None:
    model, texts = build_network(dropout=0.0), make_batch()
    with torch.autocast("cpu", torch.bfloat16):
        packed, padded = (forward_backward(model, call, texts) for call in (model.packed, model))
    assert_close(packed, padded, 0.03)


@pytest.mark.parametrize(
    ("kind", "real"), each_once([nn.Dropout, DropoutFromBits], [None, [[True] * 5, [True, True, True, False, False]]])
)
def test_dropout_of_attention_has_the_mean_of_none(kind: Any, real: list[list[bool]] | None) -> None:
    torch.manual_seed(0)
    module, mask = nn.Module(), torch.tensor(real)[:, None, None] if real else None
    module.dropout = kind(0.25)
    query, key, value = (torch.randn(2, 200, 5, 8) for _ in range(3))
    expected = functional.scaled_dot_product_attention(query, key, value, mask)
    outputs = torch.stack(
        [packed_attention._attend_with_dropout(module, query, key, value, mask, 0.25, None) for _ in range(400)]
    )
    assert not torch.equal(outputs[0], outputs[1])
    spread = outputs.std(dim=0) / 20
    assert float(((outputs.mean(dim=0) - expected) / spread.clamp(min=1e-6)).abs().mean()) < 1.0
