"""Ends a training: chooses its best weights, writes them into `model/`, and tests them once on `data.test`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from drivetrain.data.dataset import Head, mark_partial
from drivetrain.errors import CheckpointError
from drivetrain.job.formatting import choose_score, format_metric, format_metrics
from drivetrain.models import code_consent, forward, saved_model
from drivetrain.pretrained.model_config import CONFIG
from drivetrain.report.confusion import read_confusions
from drivetrain.system.console import say
from drivetrain.system.run_files import list_checkpoints
from drivetrain.training import losses
from drivetrain.training.checkpoints import checkpoint
from drivetrain.training.checkpoints.checkpoint import Loaded
from drivetrain.training.evaluation import calibration
from drivetrain.training.evaluation.metrics import MetricAccumulator
from drivetrain.training.run import Run


@dataclass(frozen=True)
class FinalWeights:
    """A checkpoint and the evaluation that selected it."""

    loaded: Loaded
    metric: str
    value: float | None
    """Best value of the metric; None for the weights of the last step."""
    step: int
    epoch: int
    metrics: dict[str, float] = field(default_factory=dict)
    confusion: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Return a description of the weights for messages."""
        if self.value is None:
            return f"the weights of the last step, {self.step}"
        score = choose_score(self.metric, self.metrics)
        reached = "" if score == self.metric else f"{score} {format_metric(self.metrics[score])} with the "
        return f"{reached}best {self.metric} {format_metric(self.value)} after epoch {self.epoch}{self._count_right()}"

    def _count_right(self) -> str:
        """Return ` (354 of 359 right)` for a single head with one class per sample, else an empty text."""
        matrices = read_confusions(self.confusion) if len(self.confusion) == 1 else []
        return "".join(f" ({matrix.hits:,} of {matrix.total:,} right)" for matrix in matrices)


def choose_weights(run: Run) -> FinalWeights:
    """Load the weights of the best evaluation; if they cannot be read, of an earlier best one, or of the last step.

    Unless they are from the best evaluation, the reason is recorded as an event.

    Raises:
        CheckpointError: if no checkpoint can be read.
    """
    metric, problems = run.best_metric.best.metric, []
    if run.best_metric.best.best is None:
        problems.append(f"no evaluation gave {metric} a value that is a number")
    for path in _list_candidates(run):
        try:
            final = _read_final_weights(checkpoint.load(path), metric)
        except CheckpointError as error:
            problems.append(error.given)
            continue
        if problems:
            used_weights = f"an older best: {final.describe()}" if final.value is not None else final.describe()
            run.events.add("checkpoint", f"{'; '.join(problems)}; the model has {used_weights}", run.counters.step)
        return final
    raise CheckpointError(
        f"no checkpoint can be read: {'; '.join(problems)}",
        "a disk that stores files reliably",
        "check the disk of the run folder, and start again with --new",
    )


def _list_candidates(run: Run) -> Iterator[Path]:
    """Yield the checkpoints that may give the final weights, best first."""
    best = run.best_metric.best
    if best.best is not None:
        best_path = run.checkpoints / f"best-{best.step}"
        yield best_path
        yield from (path for path in reversed(list_checkpoints(run.checkpoints, "best")) if path != best_path)
    yield from reversed(list_checkpoints(run.checkpoints))


def _read_final_weights(loaded: Loaded, metric: str) -> FinalWeights:
    state = loaded.state
    if loaded.path.name.startswith("best-"):
        best = state["watch"]["best"]
        return FinalWeights(
            loaded, best["metric"], best["best"], best["step"], best["epoch"] + 1, state["metrics"], state["confusion"]
        )
    counters = state["counters"]
    return FinalWeights(loaded, metric, None, counters["step"], counters["epoch"], state["last"])


def save_model(run: Run, final: FinalWeights) -> Path:
    """Write the `model/` folder of a run with the chosen weights; returns the folder.

    Raises:
        StorageError: if it cannot be written.
    """
    source = final.loaded
    groups = {"model": source.tensors.get("ema", source.tensors["model"])}
    if "ema" in source.tensors:
        groups["raw"] = source.tensors["model"]
    heads = [_calibrate(_add_class_weights(run, head), final) for head in run.dataset.heads.values()]
    config: dict[str, object] = {
        "task": run.job.task,
        "builder": run.built_model.builder,
        "arguments": run.built_model.arguments,
        "heads": [asdict(head) for head in heads],
        "preprocessing": run.dataset.preprocessing,
        "trained": {"run": run.folder.name, "step": final.step, "epoch": final.epoch, final.metric: final.value},
    }
    code = run.built_model.code
    if code is None:
        return saved_model.commit(run.folder / "model", groups, config, {})
    folder = saved_model.commit(run.folder / "model", groups, config | {"code": code.digests()}, code.sources)
    obstacle = code_consent.record_training(folder / CONFIG)
    if obstacle:
        say(
            f"model: its code cannot be recorded as yours because {obstacle}; predict, evaluate and export will ask for "
            "--run-code"
        )
    return folder


def _add_class_weights(run: Run, head: Head) -> Head:
    """Return the head with its class weights as numbers: `balanced` would need the training data."""
    weights = run.objective.losses[head.name].class_weights
    if weights is None:
        return head
    return replace(head, class_weights=dict(zip(head.classes, weights.tolist(), strict=True)))


def _calibrate(head: Head, final: FinalWeights) -> Head:
    """Return the head with the temperature and thresholds fitted to the validation outputs of the chosen weights."""
    fitted = calibration.read_temperature(final.confusion, head.name)
    head = replace(head, temperature=fitted.value) if fitted else head
    return replace(head, thresholds=calibration.choose_thresholds(final.confusion, head, final.metric))


def describe_calibration(final: FinalWeights) -> list[str]:
    """Describe the effect of the temperatures, for each head with classes."""
    lines = []
    for name in final.confusion:
        fitted = calibration.read_temperature(final.confusion, name)
        if fitted:
            of_head = f" of {name}" if name else ""
            lines.append(
                f"temperature: probabilities{of_head} computed from outputs / {fitted.value:.3g}"
                f"{', the end of the range that is tried' if fitted.is_at_end else ''}; validation log loss "
                f"{format_metric(fitted.log_loss)} -> {format_metric(fitted.scaled_log_loss)}, "
                f"{calibration.describe_samples(final.confusion, name)}"
            )
    return lines


def record_thresholds(run: Run, final: FinalWeights) -> None:
    """Record the probability thresholds of the classes for each head whose metric depends on them."""
    for head in run.dataset.heads.values():
        text = calibration.describe_thresholds(final.confusion, _calibrate(head, final), final.metric)
        if text:
            run.events.add("thresholds", f"{head.name}: {text}" if head.name else text, run.counters.step)


def test_model(run: Run) -> dict[str, Any]:
    """Evaluate the run's `model/` folder on the test data; returns metrics and confusion, empty without test data.

    The network is built again from its folder and computes in fp32, as in `predict` and `evaluate`.
    """
    data = run.readable
    if data.test is None:
        return {}
    train, split = run.job.train, data.test.split
    saved = saved_model.load(run.folder, consent=True)
    heads = mark_partial(data.heads, [split.targets])
    objective = losses.build_objective(train.loss, heads, data.train.targets, train.class_weights, data.loss)
    accumulator = MetricAccumulator(saved.heads, objective)
    for ids, outputs in forward.compute_outputs(saved.network, data.heads, split, data.test.prepare, run.device):
        index = torch.from_numpy(ids)
        accumulator.add(outputs, {name: y[index] for name, y in split.targets.items()})
    metrics = accumulator.metrics("test/")
    path = run.job.data_path("test") or run.job.task
    say(f"final test on {len(split):,} samples of {path}: {format_metrics(metrics, run.best_metric.best.metric, ', ')}")
    return {"data": path, "samples": len(split), "metrics": metrics, "confusion": accumulator.confusion()}
