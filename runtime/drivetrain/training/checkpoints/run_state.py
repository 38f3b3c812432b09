"""Collects the state of a run for a checkpoint, and restores it when the run resumes or rolls back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from drivetrain.data.custom.iterables import StreamBatches
from drivetrain.errors import CheckpointError
from drivetrain.training.checkpoints import checkpoint, resume
from drivetrain.training.run import Run
from drivetrain.training.user_parts import load_group_settings, read_group_settings


def collect_state(run: Run) -> dict[str, object]:
    """Collect everything except tensors that a run needs to resume, as plain values."""
    counters = {**asdict(run.counters), "seconds": run.counters.seconds + run.clock.seconds}
    frozen = [name for name, parameter in run.model.named_parameters() if not parameter.requires_grad]
    return {
        "counters": counters,
        "watch": run.best_metric.state(),
        "scaler": run.step.updater.scaler.state(),
        "ema_updates": run.ema.updates if run.ema else None,
        "last": run.last_metrics,
        "numerics": run.numerics.state(),
        "micro_batch": run.step.forward.micro_batch,
        "identity": run.identity,
        **({"groups": read_group_settings(run.optimizer)} if run.user_parts.optimizer else {}),
        **_read_stream(run),
        **({"within": run.time_target.state(run.lockstep.time_share)} if run.time_target else {}),
        # A callback of a program may have frozen or unfrozen layers; in a job this is a function of the epoch.
        **({"frozen": frozen} if run.job.task == "python" else {}),
        "moments": sum(value is not None for entry in run.optimizer.state.values() for value in entry.values()),
    }


def _read_stream(run: Run) -> dict[str, object]:
    """Read the state of an iterable that only this process reads; other iterables are read again up to the batch."""
    if not isinstance(run.batches, StreamBatches) or run.ranks.world_size > 1 or not run.counters.batch:
        return {}
    return {"stream": run.batches.stream.read_state(run.counters.epoch, run.counters.batch)}


def restore(run: Run, loaded: checkpoint.Loaded) -> None:
    """Restore weights, optimizer, counters and all other state of a run from a verified checkpoint.

    Raises:
        CheckpointError: if its content does not fit this run.
    """
    tensors: dict[str, Mapping[str, torch.Tensor]] = {"model": run.model.state_dict()}
    expected = collect_state(run)
    for key in ("stream", "within"):
        expected.pop(key, None)
        # An extended run may have a time limit that the original run did not have.
        expected |= {key: loaded.state[key]} if key in loaded.state else {}
    resume.check_fit(loaded, expected, tensors | ({"ema": run.ema.average} if run.ema else {}))
    for line in resume.list_changes(loaded.state["identity"], run.identity):
        run.events.add("resume", line, loaded.state["counters"]["step"])
    run.model.load_state_dict(loaded.tensors["model"])
    run.optimizer.state.clear()
    load_optimizer(run.model, run.optimizer, loaded.tensors["optimizer"])
    state = loaded.state
    run.counters.restore(state["counters"])
    if run.time_target and "within" in state:
        run.lockstep.time_share = run.time_target.load(state["within"])
    in_counted_epoch = not run.counters.batch and run.counters.step % run.batches.per_epoch
    if in_counted_epoch and not run.counters.solved and not run.reached_step_limit():
        # A run that `train.steps` ended within an epoch counts that epoch; a longer run trains the rest of it.
        run.counters.epoch, run.counters.batch = divmod(run.counters.step, run.batches.per_epoch)
    if run.user_parts.optimizer:
        load_group_settings(run.optimizer, state["groups"])
    run.rates.restart(run.counters)
    run.earlier_samples = run.counters.samples
    if isinstance(run.batches, StreamBatches) and run.ranks.world_size == 1:
        run.batches.state = (run.counters.epoch, run.counters.batch, state.get("stream"))
    run.best_metric.load(state["watch"])
    run.step.forget_last_step()
    run.step.updater.scaler.load(state["scaler"])
    if run.step.updater.scaler.fell_back:
        run.step.fall_back_to_fp32()
    if run.ema:
        average = {name: value.to(run.device) for name, value in loaded.tensors["ema"].items()}
        run.ema.restore(average, state["ema_updates"])
    run.last_metrics = state["last"]
    run.numerics.load(state["numerics"])
    if "frozen" in state:
        for name, parameter in run.model.named_parameters():
            parameter.requires_grad_(name not in state["frozen"])
    if state["micro_batch"] is not None:
        # Memory ran out with a larger micro-batch; the current plan may have an even smaller one.
        run.step.use_micro_batch(min(state["micro_batch"], run.step.forward.micro_batch or state["micro_batch"]))


def count_evaluated_epochs(run: Run) -> int:
    """Count the evaluated epochs, including an epoch that `train.steps` has ended early."""
    ended_early = 0 < run.counters.batch < run.batches.per_epoch
    return run.counters.epoch + int(ended_early)


def collect_optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Collect the optimizer's state by parameter name and key, such as `weight/exp_avg`."""
    names = {id(p): name for name, p in model.named_parameters()}
    tensors = {}
    for parameter, entry in optimizer.state.items():
        for key, value in entry.items():
            if value is not None:
                tensors[f"{names[id(parameter)]}/{key}"] = torch.as_tensor(value)
    return tensors


def load_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the optimizer's state from the result of `collect_optimizer_tensors`.

    Raises:
        CheckpointError: if a name is unknown.
    """
    parameters = dict(model.named_parameters())
    for path, value in tensors.items():
        name, _, key = path.rpartition("/")
        if name not in parameters:
            raise CheckpointError(
                f"the optimizer state names {name!r}, which does not exist in the network",
                "the network that was saved",
                "undo the change of the model, or use --new",
            )
        parameter = parameters[name]
        device = parameter.device if key != "step" or optimizer.param_groups[0].get("fused") else torch.device("cpu")
        value = value.to(device)
        # Moments take the memory format of their parameter, as fused kernels require.
        if value.ndim == 0 or value.shape != parameter.shape:
            optimizer.state[parameter][key] = value.clone()
            continue
        state = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
        state.copy_(value)
        optimizer.state[parameter][key] = state
