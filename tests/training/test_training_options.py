"""Training features end to end and against independent computations: EMA, mixup, stopping, plateau, steps, max_time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Batch
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.errors import Stopped
from drivetrain.job import Job
from drivetrain.job.data import Cutmix, ImageAugment, Mixup
from drivetrain.job.job import KAPPA, RANKING_METRICS
from drivetrain.training import batch_inputs, train
from drivetrain.training.ema import Ema, lerp_together
from drivetrain.training.run import Run
from drivetrain.training.saver import Saver
from drivetrain.training.step_result import BatchLoss
from drivetrain.training.time_target import Counters
from tests import tiny
from tests.messages import begins_with, says_only
from tests.training.fitted_run import fit_run, read_rows

torch.set_num_threads(1)


def make_job(train: str = "", epochs: int = 2) -> Job:
    """Make the tiny job, with four steps per epoch."""
    job = tiny.job(train=train)
    return job.model_copy(update={"train": job.train.model_copy(update={"epochs": epochs})})


def make_mixing_job(train: str = "", **augment: Any) -> Job:
    """The same with mixup or cutmix."""
    job = make_job(train)
    return job.model_copy(update={"data": job.data.model_copy(update={"augment": ImageAugment(**augment)})})


def state(model: torch.nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.double().numpy().copy() for name, value in model.state_dict().items()}


# ----------------------------------------------------------------------------------------------------------------- EMA


def test_ema_by_its_recurrence_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and running statistics are averaged after every step of a real training, counts are copied."""
    run = tiny.assemble_run(tmp_path, make_job("ema: 0.3, optimizer: {name: adamw, lr: 0.01}"))
    expected, steps = state(run.model), 0
    original_update = Ema.update

    def spy(self: Ema, model: torch.nn.Module, finite: torch.Tensor) -> None:
        nonlocal steps
        steps += 1
        assert steps == run.counters.step + 1
        decay = min(0.3, (1 + steps) / (10 + steps))
        for name, value in state(model).items():
            counts = name.endswith("num_batches_tracked")
            expected[name] = value if counts else decay * expected[name] + (1 - decay) * value
        original_update(self, model, finite)

    monkeypatch.setattr(Ema, "update", spy)
    fit_run(run)
    assert steps == 8
    assert run.ema
    for name, average in run.ema.average.items():
        np.testing.assert_allclose(average.double().numpy(), expected[name], rtol=1e-5, atol=1e-6)
    raw_weights = run.model.state_dict()
    assert any(not torch.equal(raw_weights[name], value) for name, value in run.ema.average.items())


def test_ema_is_torchs_where_both_have_one_decay() -> None:
    """torch.optim.swa_utils has no warm-up of the decay; at 0.15 ours has none either."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    ours, theirs = Ema(model, 0.15), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.15))
    theirs.n_averaged.fill_(1)  # it would take the first weights as they are
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        ours.update(model, torch.tensor(True))
        theirs.update_parameters(model)
    for name, value in theirs.module.state_dict().items():
        torch.testing.assert_close(ours.average[name], value)


def test_a_skipped_step_leaves_the_average(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 5)
    average = Ema(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    before = {name: value.clone() for name, value in average.average.items()}
    average.update(model, torch.tensor(False))
    assert all(torch.equal(value, before[name]) for name, value in average.average.items())
    average.update(model, torch.tensor(True))
    torch.testing.assert_close(average.average["weight"], before["weight"] + 9 / 11)  # 1 - (1 + 1) / (10 + 1)


def test_on_a_gpu_the_average_takes_three_operations_for_all_tensors() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    averages = [torch.randn(3, 4), torch.randn(5), torch.randn(())]
    values = [torch.randn_like(average) for average in averages]
    expected = [average.lerp(value, torch.tensor(0.3)) for average, value in zip(averages, values, strict=True)]
    weight = torch.tensor(0.3)
    with Operations() as operations:
        lerp_together(averages, values, weight)
    assert operations.names == ["_foreach_sub", "_foreach_mul_", "_foreach_add_"]
    torch.testing.assert_close(averages, expected)
    # The whole update, where tensors are on no CPU.
    network = torch.nn.Sequential(*(torch.nn.Linear(3, 3, device="meta") for _ in range(9)))
    average = Ema(torch.nn.Linear(1, 1), 0.9)
    average.average = {name: torch.empty_like(value) for name, value in network.state_dict().items()}
    average.averaged_names = set(average.average)
    with Operations() as operations:
        average.update(network, torch.ones((), dtype=torch.bool, device="meta"))
    foreach = [name for name in operations.names if name.startswith("_foreach")]
    assert (foreach, "lerp_" in operations.names) == (["_foreach_sub", "_foreach_mul_", "_foreach_add_"], False)


def test_the_average_of_an_infinite_buffer_is_that_buffer() -> None:
    """A mask of an attention layer is often minus infinity; between two infinities lies NaN."""
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, -float("inf")]))
    average = Ema(model, 0.9)
    average.update(model, torch.tensor(True))
    assert average.average["mask"].tolist() == [0.0, -float("inf")]


def test_the_average_is_what_is_validated(tmp_path: Path) -> None:
    from drivetrain.training.evaluation.validation import evaluate

    run = tiny.assemble_run(tmp_path, make_job("ema: 0.9"))
    tiny.losses(run, 8)
    assert run.ema
    run.ema.update(run.model, torch.tensor(True))
    first_metrics, _ = evaluate(run)
    with torch.no_grad():  # other raw weights change nothing
        for parameter in run.model.parameters():
            parameter.add_(torch.randn_like(parameter))
    weights_before = {name: value.clone() for name, value in run.model.state_dict().items()}
    assert evaluate(run)[0] == first_metrics
    assert all(torch.equal(weights_before[name], value) for name, value in run.model.state_dict().items())


# --------------------------------------------------------------------------------------------------------------- mixing


def batches_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch that reaches the step while the run is fitted."""
    batches: list[Batch] = []
    compute_gradients = run.step.compute_gradients

    def spy(batch: Batch, share: BatchShare) -> BatchLoss:
        batches.append(batch)
        return compute_gradients(batch, share)

    monkeypatch.setattr(run.step, "compute_gradients", spy)
    fit_run(run)
    return batches


def test_the_loop_mixes_as_the_job_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and labels of every step follow the formula, with share and partners drawn from (seed, step)."""
    run = tiny.assemble_run(tmp_path, make_mixing_job("seed: 5", mixup=Mixup(alpha=0.4, probability=1.0)))
    images, labels = run.dataset.train.inputs.double(), run.dataset.train.labels  # type: ignore[attr-defined]
    batches = batches_of(run, monkeypatch)
    assert len(batches) == 8
    for step, batch in enumerate(batches):
        generator = stateless_random.make_generator(5, "mixup", step)
        generator.integers(1), generator.random()
        share, partner = generator.beta(0.4, 0.4), generator.permutation(16)
        mine, theirs = batch.ids, batch.ids[partner]
        hot = torch.eye(3, dtype=torch.float64)[labels]
        blended = share * images[mine] + (1 - share) * images[theirs]
        torch.testing.assert_close(batch.inputs[0].double(), blended, rtol=1e-5, atol=1e-6)
        soft = share * hot[mine] + (1 - share) * hot[theirs]
        torch.testing.assert_close(batch.targets[""].double(), soft, rtol=1e-5, atol=1e-6)
    assert not run.dataset.validation.targets[""].is_floating_point()


def test_the_mixed_loss_is_that_of_both_labels(tmp_path: Path) -> None:
    """Cross entropy of blended labels is the blend of two cross entropies, label smoothing included; in NumPy."""
    loss = "loss: {name: cross-entropy, label_smoothing: 0.2}"
    run = tiny.assemble_run(tmp_path, make_mixing_job(loss, mixup=Mixup(alpha=1.0, probability=1.0)))
    ids = np.arange(16)
    split = run.dataset.train
    mixed_batch = batch_inputs.mix_samples(run, Batch(ids, split.gather(ids), {"": split.targets[""][:16]}))
    run.model.eval()
    with torch.no_grad():
        outputs = run.model(*mixed_batch.inputs)
    scores = outputs.double().numpy()
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    generator = stateless_random.make_generator(0, "mixup", 0)
    generator.integers(1), generator.random()
    share, partner = generator.beta(1.0, 1.0), generator.permutation(16)
    labels = split.targets[""][:16].numpy()

    def smoothed_loss(target: np.ndarray[Any, Any]) -> float:
        return float(np.mean(-0.8 * log_p[ids, target] - 0.2 * log_p.mean(axis=1)))

    expected = share * smoothed_loss(labels) + (1 - share) * smoothed_loss(labels[partner])
    objective = run.objective
    mixed_loss = objective(outputs, mixed_batch.targets, objective.denominators(mixed_batch.targets))
    assert float(mixed_loss) == pytest.approx(expected, rel=1e-5)


def test_mixing_does_not_depend_on_the_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixing comes before the split: all samples of a batch can be partners, whatever the parts."""
    mixed_inputs = []
    for micro in (16, 4):
        run = tiny.assemble_run(tmp_path / str(micro), make_mixing_job(cutmix=Cutmix(alpha=1.0, probability=1.0)))
        run.step.use_micro_batch(micro)
        (tmp_path / str(micro)).mkdir()
        mixed_inputs.append([batch.inputs[0] for batch in batches_of(run, monkeypatch)])
        monkeypatch.undo()
    assert len(mixed_inputs[0]) == 8
    assert all(torch.equal(one, other) for one, other in zip(*mixed_inputs, strict=True))


def test_data_that_cannot_be_blended_is_unchanged(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, make_mixing_job(mixup=Mixup(alpha=1.0, probability=1.0)))
    run.dataset.mixable = False
    batch = next(iter(run.batches.epoch(0)))
    assert batch_inputs.mix_samples(run, batch) is batch


# ------------------------------------------------------------------------------------------------------------ stopping


def make_still(run: Run) -> Run:
    """A run that learns nothing: not a bit of it moves, BatchNorm's statistics neither."""
    for module in run.model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0
    return run


NOTHING = "optimizer: {name: sgd, lr: 1.0e-30, momentum: 0.0, weight_decay: 0}"


def test_early_stopping_after_its_patience(tmp_path: Path) -> None:
    train = f"{NOTHING}, early_stopping: {{metric: validation/loss, patience: 2}}"
    run = make_still(tiny.assemble_run(tmp_path, make_job(train, 9)))
    assert begins_with(fit_run(run), "improved-evaluations-best", "validation/loss", 2)
    assert len(read_rows(tmp_path, "validation/loss")) == 3
    assert run.best_metric.best.epoch == 0
    assert [path.name for path in run.checkpoints.glob("best-*")] == ["best-4"]


def test_early_stopping_waits_for_what_still_improves(tmp_path: Path) -> None:
    train = "optimizer: {name: adamw, lr: 0.003}, early_stopping: {metric: validation/loss, patience: 1}"
    assert fit_run(tiny.assemble_run(tmp_path, make_job(train))) == "all 2 epochs trained"


def test_a_plateau_lowers_the_rate_after_its_patience(tmp_path: Path) -> None:
    train = f"{NOTHING}, schedule: {{name: plateau, patience: 1, factor: 0.5, metric: validation/loss}}"
    fit_run(make_still(tiny.assemble_run(tmp_path, make_job(train, 6))))
    by_epoch = {row["epoch"]: row["lr"] * 1e30 for row in read_rows(tmp_path, "lr")}
    # The first evaluation is the best; two more without improvement are one too many, and so on.
    assert list(by_epoch.values()) == pytest.approx([1, 1, 1, 0.5, 0.5, 0.25])


def test_steps_end_the_run_whatever_the_epochs(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, make_job("steps: 6"))
    assert fit_run(run) == "6 steps trained"
    assert [row["step"] for row in read_rows(tmp_path, "lr")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in read_rows(tmp_path, "validation/loss")] == [4, 6]
    assert run.total_steps == 6


def test_steps_stretch_the_schedule_and_not_the_epochs(tmp_path: Path) -> None:
    """The rate has come down when the steps are done; more steps than the epochs have change nothing."""
    fit_run(tiny.assemble_run(tmp_path, make_job("steps: 6")))
    rates = [row["lr"] for row in read_rows(tmp_path, "lr")]
    assert rates[-1] == pytest.approx(1e-3 * 1e-4)
    (tmp_path / "more").mkdir()
    assert fit_run(tiny.assemble_run(tmp_path / "more", make_job("steps: 600"))) == "all 2 epochs trained"


def test_max_time_that_ends_before_a_step_has_to_be_raised(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, make_job("max_time: 1h"))
    stop = Stopped("max_time of 1h has passed")
    assert says_only(train._save_after_stop(run, None, stop).action, "run-same-command-again-2")  # type: ignore[arg-type]
    run.clock.started -= 3600
    assert train._save_after_stop(run, None, stop).action.startswith("raise train.max_time (it passed before")  # type: ignore[arg-type]
    run.counters = Counters(step=3, samples=48)
    assert says_only(train._save_after_stop(run, Saver(run), stop).action, "run-same-command-again-resume")
    run.earlier_samples = 48
    assert train._save_after_stop(run, Saver(run), stop).action.startswith("raise train.max_time (it passed before")


def test_max_time_stops_between_two_steps(tmp_path: Path) -> None:
    run = tiny.assemble_run(tmp_path, make_job("max_time: 1h"))
    forward = run.step.forward.compute

    def slow(*inputs: Tensor) -> Any:
        if run.counters.step == 2:
            run.clock.started -= 3601
        return forward(*inputs)

    run.step.forward.compute = slow
    with pytest.raises(Stopped) as stop:
        fit_run(run)
    assert "max_time of 1h has passed" in str(stop.value)
    assert run.counters.step == 3
    assert stop.value.exit_code == 75


# -------------------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("gamma", "alpha", "smoothing"), [(2.0, None, 0.0), (0.7, None, 0.15), (2.0, 0.25, 0.1)])
def test_focal_loss_in_numpy(gamma: float, alpha: float | None, smoothing: float, soft: bool) -> None:
    from drivetrain.job.train import Focal
    from drivetrain.training.losses import build_terms

    classes = 2 if alpha is not None else 4
    generator = np.random.default_rng(1)
    outputs, hard = generator.normal(size=(20, classes)) * 2, generator.integers(0, classes, 20)
    probabilities = generator.dirichlet(np.ones(classes), 20) if soft else np.eye(classes)[hard]
    smooth = probabilities * (1 - smoothing) + smoothing / classes
    p = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    weight = np.ones(classes) if alpha is None else np.array([1 - alpha, alpha])
    expected = (-weight * smooth * (1 - p) ** gamma * np.log(p)).sum(1)
    spec = Focal(name="focal", gamma=gamma, alpha=alpha, label_smoothing=smoothing)
    targets = torch.from_numpy(probabilities) if soft else torch.from_numpy(hard)
    np.testing.assert_allclose(build_terms(spec)(torch.from_numpy(outputs), targets).numpy(), expected, rtol=1e-10)


def test_metrics_that_are_watched_have_to_be_there(tmp_path: Path) -> None:
    """The evaluation computes every metric that a job of the task can name."""
    run = tiny.assemble_run(tmp_path, make_job())
    fit_run(run)
    values: Mapping[str, float] = run.last_metrics
    of_two_classes = {f"validation/{name}" for name in (*RANKING_METRICS, KAPPA)}
    assert {name for name in run.job.metrics() if name.startswith("validation/")} - of_two_classes == set(values)
