"""The mask of an encoder is not read from a device, and gives the same outputs as the mask of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from drivetrain.data.dataset import attach_lengths, count_tokens
from drivetrain.models.networks import text_encoder
from tests.axes import each_once
from tests.models.packed_texts import build_network, make_batch


@pytest.mark.parametrize("family", text_encoder.ENCODERS_PASSING_MASKS)
def test_outputs_are_those_of_a_mask_of_two_dimensions(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text_network, inputs = build_network(family).eval(), make_batch()
    ours = text_network(*inputs)
    monkeypatch.setattr(text_encoder, "reduce_mask", lambda config, mask: mask)
    for name, theirs in text_network(*inputs).items():
        torch.testing.assert_close(ours[name], theirs)


@pytest.mark.parametrize(("lengths", "family"), each_once([[7, 7], [3, 7]], text_encoder.ENCODERS_PASSING_MASKS))
def test_an_encoder_reads_no_mask_from_its_device(family: str, lengths: list[int]) -> None:
    """Tensors of this device have no numbers, so whoever reads one fails."""
    text_network, (ids, mask) = build_network(family).to("meta"), make_batch(lengths)
    meta_mask = mask.to("meta")
    attach_lengths(meta_mask, count_tokens(mask))
    assert text_network(ids.to("meta"), meta_mask)["one"].is_meta
    config: Any = text_network.encoder.config
    assert (text_encoder.reduce_mask(config, meta_mask) is None) == (text_encoder.reduce_mask(config, mask) is None)
    assert (text_encoder.reduce_mask(config, mask) is None) == (lengths == [7, 7])


@pytest.mark.parametrize("lengths", [[7, 7], [3, 7]])
def test_a_decoder_and_other_families_get_the_mask_of_two_dimensions(lengths: list[int]) -> None:
    mask = make_batch(lengths)[1]
    for family, decoder in (("t5", False), ("bert", True)):
        config: Any = build_network(family).encoder.config
        config.is_decoder = decoder
        assert text_encoder.reduce_mask(config, mask) is mask


def test_a_network_that_is_exported_holds_for_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    reduced = text_encoder.reduce_mask(build_network().encoder.config, torch.ones(3, 5, dtype=torch.int64))
    assert isinstance(reduced, Tensor)
    assert reduced.shape == (3, 1, 1, 5)
