"""Many kinds of user losses equal the losses of a plain loop, however a batch is split, or are not split: in one process
and in two, in micro-batches and whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import drivetrain
from drivetrain.errors import OutOfMemory, SpecError
from drivetrain.models import inspection
from drivetrain.optimizations import micro_batch
from drivetrain.training.assemble import Assembly
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from tests import border_losses, ranks_cases, tiny
from tests.axes import each_once
from tests.border_losses import LOSSES
from tests.messages import saying, says

torch.set_num_threads(1)
REFUSED = {"unknown": "neither the mean nor the sum over its parts", "beside": "neither the mean nor the sum"}
SPLIT = [kind for kind in LOSSES if kind not in REFUSED]
Numbers = dict[str, list[float]]


def train_by_hand(folder: Path, kind: str) -> Numbers:
    """Train the same batches in a plain loop."""
    run = border_losses.assemble_run(folder, kind)
    model, loss = run.model, LOSSES[kind]
    optimizer = torch.optim.SGD(model.parameters(), lr=float(run.job.train.optimizer.lr))
    (x, y), (validation_inputs, validation_labels) = (
        (split.gather(torch.arange(len(split)).numpy())[0], split.targets[""])
        for split in (run.dataset.train, run.dataset.validation)
    )
    numbers: Numbers = {"train/loss": [], "validation/loss": []}
    for epoch in range(2):
        for ids in map(torch.from_numpy, run.batches.order(epoch)):
            value = loss(model(x[ids]), y[ids]).mean()
            # A batch without anything that counts trains nothing.
            if not value.isnan():
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
            numbers["train/loss"].append(float(value.detach().nan_to_num()))
        with torch.no_grad():
            numbers["validation/loss"].append(float(loss(model(validation_inputs), validation_labels).mean()))
    return numbers | {"weights": border_losses.weights(model)}


@pytest.fixture(scope="module")
def outcomes_of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = [case for kind in LOSSES for case in (kind, f"{kind}/3")]
    leader, other = ranks_cases.run_cases(tmp_path_factory.mktemp("two"), cases, 2, "border_losses")
    assert all(leader[case].get("weights") == other[case].get("weights") for case in cases)
    return leader


def assert_same_numbers(actual: dict[str, Any], expected: Numbers) -> None:
    assert "refused" not in actual, actual
    for key, values in expected.items():
        one, two = torch.tensor(actual[key], dtype=torch.float64), torch.tensor(values, dtype=torch.float64)
        assert len(one) == len(two)
        assert float((one - two).norm() / two.norm()) < 1e-5, key


@pytest.mark.parametrize(("size", "kind"), each_once(["", "/3"], SPLIT))
def test_one_process_trains_as_a_loop_by_hand(kind: str, size: str, tmp_path: Path) -> None:
    assert_same_numbers(
        border_losses.train_case(tmp_path / "run", kind + size), train_by_hand(tmp_path / "plain", kind)
    )


@pytest.mark.parametrize(("size", "kind"), each_once(["", "/3"], SPLIT))
def test_two_processes_train_as_a_loop_by_hand(
    kind: str, size: str, tmp_path: Path, outcomes_of_two: dict[str, Any]
) -> None:
    assert_same_numbers(outcomes_of_two[kind + size], train_by_hand(tmp_path, kind))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_put_together_is_trained_whole_or_refused(
    kind: str, tmp_path: Path, outcomes_of_two: dict[str, Any]
) -> None:
    assert_same_numbers(border_losses.train_case(tmp_path / "run", kind), train_by_hand(tmp_path / "plain", kind))
    refused = [
        border_losses.train_case(tmp_path / "micro", f"{kind}/3"),
        outcomes_of_two[kind],
        outcomes_of_two[f"{kind}/3"],
    ]
    keys = [
        "optimize.micro_batch: is 3",
        "limits.processes: a batch is divided among 2 processes",
        "optimize.micro_batch: is 3",
    ]
    for numbers, key in zip(refused, keys, strict=True):
        assert key in numbers["refused"]
        assert REFUSED[kind] in numbers["refused"]
        assert "weight_of" in numbers["refused"]


def model_loss(form: str, x: Tensor, y: Tensor, inner: nn.Module) -> Tensor:
    terms = F.cross_entropy(inner(x), y, reduction="none")
    counts = (y > 0).float()
    return {"mean": terms.mean(), "sum": terms.sum(), "masked": (terms * counts).sum() / counts.sum()}[form]


class WithLoss(nn.Module):
    """A model that returns its loss, with dropout, which evaluation mode turns off."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.form, self.inner = form, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 3))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": model_loss(self.form, x, y, self.inner)}


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(64, 4, generator=generator)
    return list(
        zip(
            x.split(16),
            torch.multinomial(torch.tensor([6.0, 2.0, 1.0]), 64, True, generator=generator).split(16),
            strict=True,
        )
    )


@pytest.mark.parametrize("size", ["off", 1, 5], ids=["whole", "ones", "fives"])
@pytest.mark.parametrize(
    ("form", "weight_of"),
    [("mean", None), ("sum", None), ("masked", lambda batch: batch["y"] > 0), ("masked", None)],
    ids=["mean", "sum", "counted", "unknown"],
)
def test_a_model_that_returns_its_loss_is_split_exactly_or_not(form: str, weight_of: Any, size: int | str) -> None:
    model, model_by_hand = WithLoss(form).train(), WithLoss(form).train()
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.02) for network in (model, model_by_hand)]
    optimize: dict[str, Any] = {"cpu_threads": 1, "micro_batch": size}
    with drivetrain.prepare(model, optimizers[0], weight_of=weight_of, optimize=optimize, quiet=True) as step:
        for x, y in batches():
            if form == "masked" and weight_of is None and size != "off":
                with pytest.raises(
                    SpecError, match=f"optimize.micro_batch is {size}, and the loss of a batch is neither"
                ):
                    step({"x": x, "y": y})
                assert model.inner.training
                return
            step_loss = step({"x": x, "y": y})
            loss = model_by_hand(x, y)["loss"]
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            assert step_loss == pytest.approx(float(loss.detach()), rel=1e-5)
    for one, two in zip(model.parameters(), model_by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


class Tokens(nn.Module):
    """A model of tokens: labels of -100 count nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.inner(x).flatten(0, 1), labels.flatten())


def test_labels_that_a_later_batch_may_leave_out_are_tried_with_the_first() -> None:
    batch = {"x": torch.randn(8, 5, 4), "labels": torch.ones(8, 5).long()}
    model = Tokens()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        drivetrain.prepare(model, sgd, optimize={"cpu_threads": 1, "micro_batch": 2}, quiet=True) as step,
        pytest.raises(SpecError, check=saying("neither-mean-nor-sum")),
    ):
        step(batch)


def test_memory_that_runs_out_with_a_loss_that_cannot_be_split_is_an_error(tmp_path: Path) -> None:
    run = border_losses.assemble_run(tmp_path, "unknown")
    run.step.forward.network.register_forward_hook(
        lambda *arguments: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory"))
    )
    with pytest.raises(
        OutOfMemory, match=r"out of memory with 16 samples at once, and .*neither the mean nor the sum"
    ) as caught:
        tiny.losses(run, 1)
    assert "weight_of" in caught.value.action


def test_nothing_offers_micro_batches_of_a_loss_that_cannot_be_split(tmp_path: Path) -> None:
    run = border_losses.assemble_run(tmp_path, "unknown")
    facts = inspection.inspect_workload(run.dataset, run.model)
    assert micro_batch.candidates(run.job, run.hardware, facts) == ["off"]
    assert says(micro_batch.choose(run.job, run.hardware, facts).reason, "neither-mean-nor-sum")
    lines: list[str] = []
    job = run.job.model_copy(update={"optimize": {"micro_batch": "auto"}})
    inputs = Assembly(
        job, run.hardware, run.plan, tmp_path, run.dataset, run.built_model, run.signals, facts, lines.append
    )
    assert MicroBatchSearch(inputs).measure() == {}
    assert says(lines[0], "neither-mean-nor-sum")
