"""Counting activations, and recomputing by itself where one sample does not fit without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drivetrain.data.dataset import Dataset
from drivetrain.hardware import facts as hardware
from drivetrain.job.workload import Workload
from drivetrain.models import inspection, recompute
from drivetrain.models.networks import cnn
from drivetrain.optimizations import Value, gradient_checkpointing
from drivetrain.plan import plan
from drivetrain.tuning.memory import meter
from tests import tiny
from tests.models.recomputed_networks import ENCODER, build_encoder, build_resnet
from tests.paths import MACHINES
from tests.tuning.memory.micro_batch_cases import assemble_run, case

# Counted by `activations.counted`; one sample of ResNet-50 keeps four times as much at twice the side.
BERT = Workload(
    parameters=108_893_955, trainable=108_893_955, blocks=12, activations=795_985_924, recomputed=88_107_012
)
RESNET50_AT_512 = Workload(
    parameters=23_516_228, trainable=23_516_228, blocks=16, activations=448_904_960, recomputed=233_843_456
)
RESNET50_AT_1024 = replace(RESNET50_AT_512, activations=4 * 448_904_960, recomputed=4 * 233_843_456)


@pytest.mark.parametrize(
    ("card", "facts", "optimizer", "value", "expected_reason"),
    [
        (
            "gpu-2gb",
            RESNET50_AT_512,
            "adamw",
            False,
            "not needed: 787 MiB with micro-batch 1, 1.4 GiB available",
        ),
        (
            "gpu-2gb",
            RESNET50_AT_1024,
            "adamw",
            True,
            "2.0 GiB with micro-batch 1, 1.4 GiB available; recomputing activations reduces it to 1.2 GiB",
        ),
        ("gpu-2gb", BERT, "sgd", True, "recomputing activations reduces it to 1.3 GiB"),
        (
            "gpu-2gb",
            BERT,
            "adamw",
            False,
            "weights, gradients and optimizer state alone take 1.6 GiB, 1.4 GiB available",
        ),
        ("gtx1650-4gb", RESNET50_AT_1024, "adamw", False, "not needed: 2.0 GiB with micro-batch 1, 3.0 GiB"),
        ("gtx1650-4gb", BERT, "adamw", False, "not needed: 2.4 GiB"),
        ("gtx1650-4gb", replace(BERT, activations=2 * 795_985_924), "adamw", True, "3.1 GiB with micro-batch 1"),
        ("h200", RESNET50_AT_1024, "adamw", False, "not needed"),
    ],
)
def test_turned_on_where_one_sample_does_not_fit(
    card: str, facts: Workload, optimizer: str, value: bool, expected_reason: str
) -> None:
    machine, job = (
        hardware.read_hardware(MACHINES / f"{card}.json"),
        tiny.job(train=f"optimizer: {{name: {optimizer}, lr: 1e-3}}"),
    )
    job_plan = plan.resolve(job, machine, facts)
    row = next(d for d in job_plan.decisions if d.name == "gradient_checkpointing")
    assert (row.value, row.source) == (value, "choice")
    assert expected_reason in row.reason


def test_counted_only_where_memory_is_short() -> None:
    facts = replace(RESNET50_AT_512, activations=0, recomputed=0)
    small, large = (hardware.read_hardware(MACHINES / f"{name}.json") for name in ("gpu-2gb", "h200"))
    assert gradient_checkpointing.needs_count_of_activations(tiny.job(), small, facts)
    assert not gradient_checkpointing.needs_count_of_activations(tiny.job(), large, facts)
    assert not gradient_checkpointing.needs_count_of_activations(tiny.job(), small, replace(facts, blocks=0))
    assert not gradient_checkpointing.needs_count_of_activations(
        tiny.job(optimize="gradient_checkpointing: true"), small, facts
    )


def test_counting_activations_changes_neither_network_nor_random_state() -> None:
    data = tiny.dataset()
    network = cnn.build("resnet18", channels=1, classes=3, image_size=8, width=4, dropout=0.5)
    network.eval()
    weights_before = {name: value.clone() for name, value in network.state_dict().items()}
    random_state = torch.random.get_rng_state()
    counts = meter.count_activations(inspection.inspect_workload(data, network), network, data)
    assert 0 < counts.recomputed < counts.activations
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert all(torch.equal(weights_before[name], value) for name, value in network.state_dict().items())
    assert not network.training
    assert not network._forward_hooks


def test_texts_are_counted_at_their_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    network, (ids, mask) = build_encoder()

    class Texts(tiny.Arrays):
        lengths = (3, ENCODER["max_position_embeddings"], 5, 9)

        def gather(self, indices: object) -> tuple[torch.Tensor, ...]:
            longest = max(self.lengths[int(i)] for i in indices)  # type: ignore[attr-defined, type-var]
            return ids[:2, :longest], mask[:2, :longest]

    data = Texts(ids, torch.zeros(4, dtype=torch.int64))
    counts = meter.count_activations(Workload(blocks=4), network, Dataset(data, data, {}, {}))
    short = replace(data)  # a text of three tokens keeps less
    short.lengths = (3, 3, 3, 3)
    short_counts = meter.count_activations(Workload(blocks=4), network, Dataset(short, short, {}, {}))
    assert counts.activations > 10 * short_counts.activations
    assert counts.recomputed < 0.5 * counts.activations


def test_counted_activations_are_the_saved_ones() -> None:
    network, (x,) = build_resnet()
    data = tiny.Arrays(x, torch.zeros(4, dtype=torch.int64))
    counts = meter.count_activations(Workload(blocks=8), network, Dataset(data, data, {}, {}))
    sizes: dict[int, tuple[int, torch.Tensor]] = {}
    weight_addresses = {t.untyped_storage().data_ptr() for t in (*network.parameters(), *network.buffers())}

    def note_size(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note_size, lambda tensor: tensor):
        network.train()(x[:2].clone())
    assert counts.activations == sum(size for key, (size, _) in sizes.items() if key not in weight_addresses) // 2


@pytest.mark.parametrize(("room", "value"), [(1 << 30, False), (1_000, True)])
def test_a_run_recomputes_by_itself_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, value: Value
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gradient_checkpointing, "available_bytes", lambda job, machine: room)
    monkeypatch.setattr(gradient_checkpointing, "count_fixed_bytes", lambda job, facts: 0)
    run = assemble_run(
        tmp_path / "run", case(tmp_path, "image arrays", "train: {batch_size: 8}\noptimize: {measure: off}\n")
    )
    assert run.plan.value("gradient_checkpointing") is value
    assert recompute.is_recomputed(run.model) is value
