"""Unpadding: the loss and gradients of the whole batch, from parts with little padding; the same parts for the same batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.data.dataset import Batch
from runtime.data.text import length_buckets
from runtime.job.workload import Workload
from runtime.optimizations import Effect, unpadding
from runtime.training import run
from runtime.training.evaluation.validation import evaluate
from runtime.training.step_result import StepResult
from tests import reports, tiny
from tests.models.test_feature_cache import Recorder, made
from tests.paths import MACHINES

STILL = f"{reports.ENCODER[:-1]}, dropout: 0.0"


BERT = Workload(ragged=True, blocks=12, token_work=6 * 85e6)


@pytest.mark.parametrize(
    ("lengths", "most", "tokens", "expected"),
    [
        ([3, 9, 4, 4], 8, 100, [[1, 2, 3, 0]]),
        ([3, 9, 4, 4], 8, 9, [[1], [2, 3], [0]]),
        ([3, 9, 4, 4], 1, 100, [[1], [2], [3], [0]]),
        ([3, 90, 4, 4], 2, 16, [[1], [2, 3], [0]]),
        ([5], 8, 16, [[0]]),
        ([10, 100, 10, 10], 8, 512, [[1], [0, 2, 3]]),
        ([80, 100, 80, 80], 8, 512, [[1, 0, 2, 3]]),
        ([80, 100, 80, 80], 2, 512, [[1, 0], [2, 3]]),
    ],
)
def test_length_buckets(lengths: list[int], most: int, tokens: int, expected: list[list[int]]) -> None:
    sizes = np.array(lengths)
    found = length_buckets.pieces(sizes, most, tokens)
    assert [part.tolist() for part in found] == expected
    assert length_buckets.computed(sizes, most, tokens) == sum(
        len(rows) * max(lengths[r] for r in rows) for rows in expected
    )


def gradient(done: run.Run, size: int = 24) -> tuple[StepResult, torch.Tensor]:
    done.train_mode()
    recorder = Recorder([p for p in done.model.parameters() if p.requires_grad], lr=1.0)
    done.step = replace(done.step, optimizer=recorder)
    ids = np.arange(size)
    targets = {name: y[:size] for name, y in done.dataset.train.targets.items()}
    outcome = done.step(Batch(ids, done.dataset.train.gather(ids), targets), seed=0)
    return outcome, recorder.seen


@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize("tokens", [16, 128, 4096, "packed"])
@pytest.mark.parametrize("model", ["}", ", pooling: cls}", ", freeze: {embeddings: true, layers: 1}}"])
def test_loss_gradients_and_metrics_are_those_of_the_whole_batch(
    tmp_path: Path, model: str, tokens: int | str, micro: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpadding, "ROW", 200)
    reports.write(tmp_path)
    labels = "{modo: 0.1, causa: {weight: 0.6, class_weights: balanced}, prioridad: 0.3}"
    asked = reports.job(tmp_path, model=STILL + model, labels=labels)
    whole = made(tmp_path, asked, False)
    ours = made(tmp_path, asked, "freeze" in model, {"unpadding": tokens, "micro_batch": micro or "off"})
    assert unpadding.effective(ours) == tokens
    assert unpadding.effective(whole) == "off"
    widths: list[tuple[int, int, int]] = []
    forward = ours.step.options.forward

    def noted(*inputs: torch.Tensor) -> Any:
        widths.append((*inputs[-1].shape, int(inputs[-1].sum())))
        return forward(*inputs)

    ours.configure_step(forward=noted)
    (want, wanted), (got, found) = gradient(whole), gradient(ours)
    assert got.loss == pytest.approx(want.loss, rel=1e-5)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    assert sum(rows for rows, _, _ in widths) == 24
    assert all(rows <= (micro or 24) for rows, _, _ in widths)
    if tokens == "packed":
        assert all(real <= 200 or rows == 1 for rows, _, real in widths)
        assert len(widths) > 1
    else:
        assert all(rows * width <= int(tokens) or rows == 1 for rows, width, _ in widths)
    assert evaluate(ours)[0] == pytest.approx(evaluate(whole)[0], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("value", [128, "packed"])
def test_vectors_of_a_frozen_encoder_are_trained_on_as_they_are(tmp_path: Path, value: int | str) -> None:
    """There is nothing left to cut or to pack, even where a stored plan says so."""
    reports.write(tmp_path)
    asked = reports.job(tmp_path, model=f"{reports.ENCODER[:-1]}, freeze: {{names: [encoder]}}}}")
    ours = made(tmp_path, asked, True, {"unpadding": value})
    whole = made(tmp_path, asked, True)
    assert tiny.losses(ours, 2) == pytest.approx(tiny.losses(whole, 2), rel=1e-5)


def test_fewer_tokens_are_computed_and_each_real_one_once(tmp_path: Path) -> None:
    reports.write(tmp_path)
    ours = made(tmp_path, reports.job(tmp_path, model=STILL + "}"), False, {"unpadding": 128})
    batch = next(iter(ours.batches.epoch(0)))
    parts = list(ours.step.micro_batches(batch))
    assert sorted(np.concatenate([part.ids for part in parts]).tolist()) == sorted(batch.ids.tolist())
    assert sum(int(part.inputs[1].sum()) for part in parts) == int(batch.inputs[1].sum())
    assert sum(part.inputs[0].numel() for part in parts) < 0.7 * batch.inputs[0].numel()
    for part in parts:
        assert part.inputs[1].sum(dim=1).max() == part.inputs[1].shape[1]


@pytest.mark.parametrize("value", [64, "packed"])
def test_with_dropout_a_step_again_is_the_same_step(tmp_path: Path, value: int | str) -> None:
    reports.write(tmp_path)
    asked = reports.job(tmp_path)
    first, again, other = (made(tmp_path, asked, False, {"unpadding": value}) for _ in range(3))
    assert tiny.losses(first, 4) == tiny.losses(again, 4)
    other.counters.step = 1
    assert tiny.losses(other, 1) != tiny.losses(made(tmp_path, asked, False, {"unpadding": value}), 1)


@pytest.mark.parametrize(
    ("task", "facts", "gpu", "value", "reason"),
    [
        ("text", None, False, "packed", "one sequence without padding"),
        ("text", Workload(ragged=True, token_bytes=9), False, "packed", "one sequence without padding"),
        ("text", Workload(ragged=True), False, 512, "not packed: this encoder mixes tokens in other layers"),
        (
            "text",
            Workload(ragged=True, token_bytes=1 << 24),
            False,
            512,
            "not packed: one sequence needs up to 32.0 GiB",
        ),
        ("compiled", Workload(ragged=True, token_bytes=9), False, 512, "not packed: the job sets compile"),
        ("text", BERT, True, 65536, "saves more than the 471 tokens of one more pass"),
        ("text", Workload(ragged=True, layers={"BatchNorm1d": 1}), False, "off", "BatchNorm would see other batches"),
        ("text", Workload(ragged=False), False, "off", "all samples have the same size"),
        ("image", None, False, "off", "all samples have the same size"),
        (
            "frozen",
            Workload(ragged=True, prefix="the whole encoder", prefix_work=9e9),
            False,
            "off",
            "each text is a single vector",
        ),
        (
            "frozen",
            Workload(ragged=True, prefix="x", prefix_ragged=True, prefix_work=9e9),
            False,
            512,
            "similar length",
        ),
        (
            "frozen",
            Workload(ragged=True, prefix="x", prefix_ragged=True, prefix_work=9e9, token_bytes=9),
            False,
            "packed",
            "one sequence without padding",
        ),
    ],
)
def test_it_is_chosen_for_texts(
    tmp_path: Path, task: str, facts: Workload | None, gpu: bool, value: int | str, reason: str
) -> None:
    reports.write(tmp_path)
    model = reports.ENCODER[:-1] + (", freeze: {names: [encoder]}}" if task == "frozen" else "}")
    asked = tiny.job() if task == "image" else reports.job(tmp_path, model=model)
    if task == "compiled":
        asked = asked.model_copy(update={"optimize": {"compile": True}})
    name = "t4" if gpu else "vm-2core-cgroup1"
    here = tiny.facts.load(MACHINES / f"{name}.json")
    choice = unpadding.choose(asked, here, facts)
    assert choice.value == value
    assert reason in choice.reason


@pytest.mark.parametrize("texts", [1, 16, 64, 256])
@pytest.mark.parametrize(
    ("name", "most"), [("gtx1080", 1.4), ("t4", 1.8), ("rtx3060-driver580", 1.8), ("a100", 3.5), ("h100", 5.0)]
)
def test_on_a_gpu_a_batch_is_cut_only_where_that_pays(name: str, texts: int, most: float) -> None:
    """Lengths of ordinary texts: log-normal, median 25. A slow chip computes little padding, a fast one rather waits less."""
    lengths = np.clip(np.exp(np.random.default_rng(0).normal(np.log(25), 1.0, texts)), 4, 512).astype(np.int64)
    cost = unpadding.pass_tokens(tiny.facts.load(MACHINES / f"{name}.json"), BERT)
    parts = length_buckets.pieces(lengths, texts, unpadding.GPU_TOKENS, cost)
    computed = length_buckets.computed(lengths, texts, unpadding.GPU_TOKENS, cost)
    padded = texts * int(lengths.max())
    assert computed + len(parts) * cost <= padded + cost
    assert computed <= most * lengths.sum()
    if texts == 256:
        assert padded > 8 * lengths.sum()


def test_the_step_on_a_gpu_cuts_by_what_a_pass_costs_there(tmp_path: Path) -> None:
    reports.write(tmp_path)
    ours = made(tmp_path, reports.job(tmp_path, model=STILL + "}"), False)
    ours.hardware = tiny.facts.load(MACHINES / "t4.json")
    unpadding.apply(ours, unpadding.GPU_TOKENS)
    splitter = ours.step.options.splitter
    assert isinstance(splitter, length_buckets.TokenSplitter)
    assert splitter.pass_cost > 1000 * length_buckets.PASS_TOKENS  # a tiny encoder: a pass costs far more than tokens
    assert len(list(ours.step.micro_batches(next(iter(ours.batches.epoch(0)))))) == 1


@pytest.mark.parametrize(
    ("layers", "effect"), [({"Linear": 2}, Effect.ROUNDING), ({"BatchNorm1d": 1}, Effect.TRAINING)]
)
def test_its_effect_is_that_of_a_split(layers: dict[str, int], effect: Effect) -> None:
    assert unpadding.EFFECT(Workload(layers=layers)) is effect
