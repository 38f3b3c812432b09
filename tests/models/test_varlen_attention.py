"""Attention of a packed row by one kernel: as padded texts, and called as torch declares the operators of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from drivetrain.models import packed_attention, recompute
from tests.axes import each_once
from tests.models.packed_texts import LENGTHS, assert_close, build_network, forward_backward, make_batch

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


class Reference:
    """Computes the same attention text by text, and records its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int, float, tuple[int, ...]]] = []

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, dropout: float, scale: float
    ) -> Tensor:
        cuts = starts.tolist()
        assert starts.dtype == torch.int32
        assert all(x.stride(-1) == 1 and x.shape[-1] % 8 == 0 for x in (query, key, value))
        self.calls.append((cuts, longest, dropout, tuple(query.shape)))
        output = torch.full_like(query, torch.nan)  # as memory that no text has written
        for start, end in pairwise(cuts):
            text = (x[start:end].transpose(0, 1) for x in (query, key, value))
            attended = functional.scaled_dot_product_attention(*text, scale=scale, dropout_p=dropout)  # type: ignore[arg-type, misc]
            output[start:end] = attended.transpose(0, 1)
        return output


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Reference:
    reference = Reference()
    monkeypatch.setattr(packed_attention, "find_kernel", lambda hidden, width: reference)
    return reference


@pytest.mark.parametrize(
    ("pooling", "lengths", "family"),
    each_once(["mean", "cls"], [LENGTHS, [5, 5], [60] * 12, [32, 32]], packed_attention.PACKABLE_ENCODERS),
)
def test_outputs_and_gradients_are_those_of_padded_texts(
    kernel: Reference, family: str, lengths: list[int], pooling: str
) -> None:
    model, texts = build_network(family, pooling), make_batch(lengths)  # type: ignore[arg-type]
    assert_close(forward_backward(model, model.packed, texts), forward_backward(model, model, texts))
    assert len(kernel.calls) == 2  # one for each layer


def test_one_call_a_layer_gets_every_text_and_the_filled_up_end(kernel: Reference) -> None:
    model = build_network("distilbert", dropout=0.25)
    forward_backward(model, model.packed, make_batch([2, 0, 40, 4]))
    model.eval()
    forward_backward(model, model.packed, make_batch([64]))
    assert kernel.calls[::2] == [([0, 2, 42, 46, 64], 40, 0.25, (64, 2, 8)), ([0, 64], 64, 0.0, (64, 2, 8))]


def test_narrow_heads_are_filled_up(kernel: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = build_network(), make_batch()
    padded = forward_backward(model, model, texts)
    monkeypatch.setattr(packed_attention, "WIDTH_MULTIPLE", 24)
    assert_close(forward_backward(model, model.packed, texts), padded)
    assert {shape[2] for *_, shape in kernel.calls} == {24}


def test_recomputed_layers_are_the_same(kernel: Reference) -> None:
    plain_model, recomputed_model, texts = build_network(dropout=0.3), build_network(dropout=0.3), make_batch()
    recompute.recompute(recomputed_model)
    stored_pass, recomputed_pass = (
        forward_backward(model, model.packed, texts) for model in (plain_model, recomputed_model)
    )
    assert torch.equal(stored_pass[1], recomputed_pass[1])


def test_in_bf16(kernel: Reference) -> None:
    model, texts = build_network(), make_batch()
    with torch.autocast("cpu", BRAIN):
        packed, padded = (forward_backward(model, call, texts) for call in (model.packed, model))
    assert_close(packed, padded, 0.03)


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "allowed", "expected"),
    [
        ((5, 2), FULL, 64, (True, True), packed_attention.efficient_attention),
        ((6, 1), HALF, 64, (True, True), packed_attention.efficient_attention),
        ((7, 5), HALF, 64, (True, True), packed_attention.efficient_attention),
        ((7, 5), BRAIN, 64, (True, True), None),
        ((7, 5), HALF, 64, (True, False), None),
        ((8, 6), BRAIN, 64, (True, True), packed_attention.flash_attention),
        ((9, 0), HALF, 64, (True, False), packed_attention.flash_attention),
        ((9, 0), HALF, 64, (False, True), packed_attention.efficient_attention),
        ((8, 9), HALF, 256, (True, True), packed_attention.efficient_attention),
        ((9, 0), FULL, 64, (True, True), packed_attention.efficient_attention),
        ((9, 0), FULL, 64, (True, False), None),
        ((9, 0), torch.float64, 64, (True, True), None),
        ((3, 7), FULL, 64, (True, True), None),
    ],
)
def test_the_kernel_by_chip_and_format(
    capability: tuple[int, int], dtype: torch.dtype, width: int, allowed: tuple[bool, bool], expected: Any
) -> None:
    assert packed_attention.choose_kernel(capability, dtype, width, *allowed) is expected


class Operators(TorchDispatchMode):
    """Notes the operators of attention, and the backward pass of one whose shapes torch itself derives wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if "attention" in function.__name__:
            self.names.append(function.__name__)
        if function is torch.ops.aten._efficient_attention_backward.default:
            return *(torch.empty_like(x) for x in args[1:4]), None
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [packed_attention.flash_attention, packed_attention.efficient_attention])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_torch_accepts_the_calls_with_their_gradients(kind: Callable[..., Tensor], dropout: float) -> None:
    """By the declarations of the operators, on tensors without numbers."""
    row = packed_attention.lay_out(make_batch()[1], kind)
    assert row.starts is not None
    query = torch.empty(row.size, 2, 8, device="meta", dtype=HALF, requires_grad=True)
    with Operators() as operators:
        out = kind(query, query, query, row.starts.to("meta"), row.longest, dropout, 0.5)
        out.float().sum().backward()
        assert out.shape == query.shape
    name = f"_{kind.__name__}"  # type: ignore[attr-defined, unused-ignore]
    assert operators.names == [f"{name}_forward.default", f"{name}_backward.default"]
    assert query.grad is not None


def test_the_operators_take_what_older_versions_take() -> None:
    """The arguments by place have these names since torch 2.5, and the rest has defaults."""
    for name, expected_names in (
        ("_flash_attention_forward", "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal"),
        (
            "_efficient_attention_forward",
            "query key value bias cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p custom_mask_type "
            "compute_log_sumexp",
        ),
    ):
        names = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
        assert names[: len(expected_names.split())] == expected_names.split()
        assert "scale" in names
