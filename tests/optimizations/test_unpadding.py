"""Unpadding: the loss and gradients of the whole batch, from parts with little padding; the same parts for the same batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Batch
from drivetrain.data.load_data import load
from drivetrain.data.text import job_tokenizer, length_buckets
from drivetrain.job import Job
from drivetrain.job.text import PASS_TOKENS
from drivetrain.job.workload import Workload
from drivetrain.models import inspection, packed_attention
from drivetrain.models.build import build
from drivetrain.optimizations import Effect, unpadding
from drivetrain.plan import plan
from drivetrain.training import run
from drivetrain.training.evaluation.validation import evaluate
from drivetrain.training.step import Step
from drivetrain.training.step_result import StepResult
from drivetrain.training.updater import Updater
from tests import reports, tiny
from tests.axes import each_once
from tests.models.cached_features import Recorder, assemble_run
from tests.paths import MACHINES

STILL = f"{reports.ENCODER[:-1]}, dropout: 0.0"


BERT = Workload(ragged=True, blocks=12, token_work=6 * 85e6)
PACKABLE = replace(BERT, token_bytes=600_000, tokens=30.0, padding=0.7)


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
    buckets = length_buckets.pieces(sizes, most, tokens)
    assert [part.tolist() for part in buckets] == expected
    assert length_buckets.count_computed(sizes, most, tokens) == sum(
        len(rows) * max(lengths[r] for r in rows) for rows in expected
    )


def gradient(trained_run: run.Run, size: int = 24) -> tuple[StepResult, torch.Tensor]:
    trained_run.train_mode()
    recorder = Recorder([p for p in trained_run.model.parameters() if p.requires_grad], lr=1.0)
    trained_run.step.updater = Updater(trained_run.model, recorder, trained_run.job.train.clip_norm)
    ids = np.arange(size)
    targets = {name: y[:size] for name, y in trained_run.dataset.train.targets.items()}
    outcome = trained_run.step(Batch(ids, trained_run.dataset.train.gather(ids), targets))
    return outcome, recorder.gradients


@pytest.mark.parametrize(
    ("micro", "tokens", "model"),
    each_once(
        [None, 3], [16, 128, 4096, "packed"], ["}", ", pooling: cls}", ", freeze: {embeddings: true, layers: 1}}"]
    ),
)
def test_loss_gradients_and_metrics_are_those_of_the_whole_batch(
    tmp_path: Path, model: str, tokens: int | str, micro: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpadding, "MAX_ROW_TOKENS", 200)
    reports.write_reports(tmp_path)
    labels = "{modo: 0.1, causa: {weight: 0.6, class_weights: balanced}, prioridad: 0.3}"
    job = reports.job(tmp_path, model=STILL + model, labels=labels)
    full_batch = assemble_run(tmp_path, job, False)
    unpadded = assemble_run(tmp_path, job, "freeze" in model, {"unpadding": tokens, "micro_batch": micro or "off"})
    assert unpadding.effective(unpadded) == tokens
    assert unpadding.effective(full_batch) == "off"
    widths: list[tuple[int, int, int]] = []
    forward = unpadded.step.forward.compute

    def record_widths(*inputs: torch.Tensor) -> Any:
        widths.append((*inputs[-1].shape, int(inputs[-1].sum())))
        return forward(*inputs)

    unpadded.step.forward.compute = record_widths
    (full_outcome, full_gradient), (outcome, unpadded_gradient) = gradient(full_batch), gradient(unpadded)
    assert outcome.loss == pytest.approx(full_outcome.loss, rel=1e-5)
    torch.testing.assert_close(
        unpadded_gradient, full_gradient, rtol=1e-4, atol=1e-5 * float(full_gradient.abs().max())
    )
    assert sum(rows for rows, _, _ in widths) == 24
    assert all(rows <= (micro or 24) for rows, _, _ in widths)
    if tokens == "packed":
        assert all(real <= 200 or rows == 1 for rows, _, real in widths)
        assert len(widths) > 1
    else:
        assert all(rows * width <= int(tokens) or rows == 1 for rows, width, _ in widths)
    assert evaluate(unpadded)[0] == pytest.approx(evaluate(full_batch)[0], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("value", [128, "packed"])
def test_vectors_of_a_frozen_encoder_are_trained_on_as_they_are(tmp_path: Path, value: int | str) -> None:
    """There is nothing left to cut or to pack, even where a stored plan says so."""
    reports.write_reports(tmp_path)
    job = reports.job(tmp_path, model=f"{reports.ENCODER[:-1]}, freeze: {{names: [encoder]}}}}")
    unpadded = assemble_run(tmp_path, job, True, {"unpadding": value})
    full_batch = assemble_run(tmp_path, job, True)
    assert tiny.losses(unpadded, 2) == pytest.approx(tiny.losses(full_batch, 2), rel=1e-5)


def test_fewer_tokens_are_computed_and_each_real_one_once(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    ours = assemble_run(tmp_path, reports.job(tmp_path, model=STILL + "}"), False, {"unpadding": 128})
    batch = next(iter(ours.batches.epoch(0)))
    parts = list(ours.step.forward.split(batch))
    assert sorted(np.concatenate([part.ids for part in parts]).tolist()) == sorted(batch.ids.tolist())
    assert sum(int(part.inputs[1].sum()) for part in parts) == int(batch.inputs[1].sum())
    assert sum(part.inputs[0].numel() for part in parts) < 0.7 * batch.inputs[0].numel()
    for part in parts:
        assert part.inputs[1].sum(dim=1).max() == part.inputs[1].shape[1]


@pytest.mark.parametrize("value", [64, "packed"])
def test_with_dropout_a_step_again_is_the_same_step(tmp_path: Path, value: int | str) -> None:
    reports.write_reports(tmp_path)
    job = reports.job(tmp_path)
    first, repeated, other = (assemble_run(tmp_path, job, False, {"unpadding": value}) for _ in range(3))
    assert tiny.losses(first, 4) == tiny.losses(repeated, 4)
    other.counters.step = 1
    assert tiny.losses(other, 1) != tiny.losses(assemble_run(tmp_path, job, False, {"unpadding": value}), 1)


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
        ("text", None, True, "packed", "one sequence without padding"),
        ("text", BERT, True, 65536, "saves more than the 471 tokens of one more pass; not packed: this encoder mixes"),
        (
            "text",
            PACKABLE,
            True,
            "packed",
            "1,120 tokens of padding beside 480 real ones in a batch would take 22.8 ms",
        ),
        ("text", replace(PACKABLE, blocks=2), True, "packed", "22.8 ms, and packing takes the host 0.07 ms more"),
        ("text", replace(PACKABLE, blocks=2, token_work=9e5), True, "off", "would take 0.0403 ms, and packing takes"),
        ("text", replace(PACKABLE, padding=0.0), True, "off", "0 tokens of padding"),
        ("text", replace(PACKABLE, token_bytes=1 << 24), True, 65536, "not packed: one sequence needs up to 32.0 GiB"),
        ("math", PACKABLE, True, 65536, "not packed: attention: math has no kernel for texts of different lengths"),
        ("flash", PACKABLE, True, 65536, "not packed: attention: flash has no kernel for fp32"),
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
    reports.write_reports(tmp_path)
    model = reports.ENCODER[:-1] + (", freeze: {names: [encoder]}}" if task == "frozen" else "}")
    job = tiny.job() if task == "image" else reports.job(tmp_path, model=model)
    if task == "compiled":
        job = job.model_copy(update={"optimize": {"compile": True}})
    if task in ("math", "flash"):
        job = job.model_copy(update={"optimize": {"attention": task, "precision": "fp32"}})
    name = "t4" if gpu else "vm-2core-cgroup1"
    machine = tiny.facts.read_hardware(MACHINES / f"{name}.json")
    choice = unpadding.choose(job, machine, facts)
    assert choice.value == value
    assert reason in choice.reason


@pytest.mark.parametrize("texts", [1, 16, 64, 256])
@pytest.mark.parametrize(
    ("name", "most"), [("gtx1080", 1.4), ("t4", 1.8), ("rtx3060-driver580", 1.8), ("a100", 3.5), ("h100", 5.0)]
)
def test_on_a_gpu_a_batch_is_cut_only_where_that_pays(name: str, texts: int, most: float) -> None:
    """Lengths of ordinary texts: log-normal, median 25. A slow chip computes little padding, a fast one rather waits less."""
    lengths = np.clip(np.exp(np.random.default_rng(0).normal(np.log(25), 1.0, texts)), 4, 512).astype(np.int64)
    cost = unpadding.pass_tokens(tiny.facts.read_hardware(MACHINES / f"{name}.json"), BERT)
    parts = length_buckets.pieces(lengths, texts, unpadding.GPU_TOKENS, cost)
    computed = length_buckets.count_computed(lengths, texts, unpadding.GPU_TOKENS, cost)
    padded = texts * int(lengths.max())
    assert computed + len(parts) * cost <= padded + cost
    assert computed <= most * lengths.sum()
    if texts == 256:
        assert padded > 8 * lengths.sum()


SAMPLE, SKEWED = "sample texts", "log-normal"


def draw_lengths(job: Job, which: str) -> tuple[np.ndarray, Workload]:
    """Lengths of training texts in random order, and what the plan knows of them and the network of the job."""
    data = load(job)
    facts = inspection.inspect_workload(data, build(job, data).module)
    if which == SAMPLE:
        return np.random.default_rng(0).permutation(data.train.lengths), facts  # type: ignore[attr-defined]
    normal = np.random.default_rng(0).normal(np.log(25), np.log(127 / 25) / 1.645, 1024)  # median 25, p95 127
    lengths = np.clip(np.exp(normal), 4, 512).astype(np.int64)
    shares = job_tokenizer.padding(lengths, 512, job.train.batch, 0)
    return lengths, replace(facts, tokens=float(lengths.mean()), padding=shares.longest)


def computed_tokens(step: Step, lengths: np.ndarray) -> int:
    """Tokens that the layers compute in one step."""
    mask = (torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]).long()
    parts = list(step.forward.split(Batch(np.arange(len(lengths)), (mask, mask), {}, lengths)))
    if step.forward.is_packed:
        return sum(
            packed_attention.lay_out(part.inputs[-1], packed_attention.efficient_attention).size for part in parts
        )
    return sum(part.inputs[0].numel() for part in parts)


@pytest.mark.parametrize("which", [SAMPLE, SKEWED])
@pytest.mark.parametrize("batch", [16, 32, 64])
def test_on_gpus_hardly_any_padding_is_computed_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, batch: int
) -> None:
    """Computed tokens over real ones, of the default encoder and of one like BERT-base, by plan and step as they are."""
    monkeypatch.setattr(inspection, "find_packing_obstacle", lambda network, dtype: "")
    reports.write_reports(tmp_path, 1000)
    job = reports.job(tmp_path, model="{name: encoder}")
    job = job.model_copy(update={"train": job.train.model_copy(update={"batch_size": batch})})
    lengths, small = draw_lengths(job, which)
    large = replace(
        small, parameters=110_000_000, trainable=110_000_000, token_bytes=600_000, blocks=12, token_work=6 * 85e6
    )
    plain = assemble_run(tmp_path, job, False)
    for machine in ("t4", "t4-driver580", "rtx3060-driver550", "rtx3060-driver580", "h100"):
        plain.hardware = tiny.facts.read_hardware(MACHINES / f"{machine}.json")
        for facts in (small, large):
            value = plan.resolve(job, plain.hardware, facts).value("unpadding")
            ours = replace(plain)
            unpadding.apply(ours, value)
            groups = [lengths[start : start + batch] for start in range(0, len(lengths), batch)]
            ratio = sum(computed_tokens(ours.step, group) for group in groups) / lengths.sum()
            padded = sum(len(group) * int(group.max()) for group in groups) / lengths.sum()
            assert (value, ratio <= 1.15) == ("packed", True), (machine, ratio)
            assert padded > 2.9


def test_rows_on_a_gpu_are_as_long_as_memory_allows() -> None:
    job = tiny.job()
    sizes = [
        unpadding.row_tokens(
            job, tiny.facts.read_hardware(MACHINES / f"{name}.json"), replace(PACKABLE, parameters=n, trainable=n)
        )
        for name, n in (
            ("vm-2core-cgroup1", 110_000_000),
            ("t4", 110_000_000),
            ("t4", 750_000_000),
            ("h100", 110_000_000),
        )
    ]
    assert sizes[0] == sizes[2] == unpadding.MAX_ROW_TOKENS < sizes[1] < sizes[3] <= unpadding.GPU_TOKENS


@pytest.mark.parametrize("obstacle", ["", "no kernel image is available"])
def test_a_gpu_without_the_kernels_cuts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    def kernel(*inputs: object) -> torch.Tensor:
        raise RuntimeError(f"CUDA error: {obstacle}\nCompile with")

    monkeypatch.setattr(packed_attention, "find_kernel", lambda hidden, width: kernel if obstacle else None)
    reports.write_reports(tmp_path)
    unpadded = assemble_run(tmp_path, reports.job(tmp_path, model=STILL + "}"), False)
    unpadded.hardware = tiny.facts.read_hardware(MACHINES / "t4.json")
    events: list[str] = []
    monkeypatch.setattr(unpadded.events, "add", lambda kind, text: events.append(text))
    unpadding.apply(unpadded, unpadding.PACKED)
    assert unpadding.effective(unpadded) == (unpadding.GPU_TOKENS if obstacle else unpadding.PACKED)
    messages = ["batches are cut by length, not packed: CUDA error: no kernel image is available (cpu)"]
    assert events == (messages if obstacle else [])


def test_the_step_on_a_gpu_cuts_by_what_a_pass_costs_there(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    ours = assemble_run(tmp_path, reports.job(tmp_path, model=STILL + "}"), False)
    ours.hardware = tiny.facts.read_hardware(MACHINES / "t4.json")
    unpadding.apply(ours, unpadding.GPU_TOKENS)
    splitter = ours.step.forward.splitter
    assert isinstance(splitter, length_buckets.TokenSplitter)
    assert splitter.pass_cost > 1000 * PASS_TOKENS  # a tiny encoder: a pass costs far more than tokens
    assert len(list(ours.step.forward.split(next(iter(ours.batches.epoch(0)))))) == 1


@pytest.mark.parametrize(
    ("layers", "effect"), [({"Linear": 2}, Effect.ROUNDING), ({"BatchNorm1d": 1}, Effect.TRAINING)]
)
def test_its_effect_is_that_of_a_split(layers: dict[str, int], effect: Effect) -> None:
    assert unpadding.EFFECT(Workload(layers=layers)) is effect
