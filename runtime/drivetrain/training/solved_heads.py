"""Solves the heads of a frozen network on its features, instead of training them for some epochs.

Layers that are unfrozen later continue from there: first probe, then fine-tune (Kumar et al. 2022).
"""

from __future__ import annotations

import contextlib
import time
from functools import partial

import torch
from torch import Tensor

from drivetrain.data.dataset import Split
from drivetrain.job.formatting import format_metric
from drivetrain.models import forward
from drivetrain.system.fault_points import fault_point
from drivetrain.training.evaluation import validation
from drivetrain.training.head_solver import HeadFeatures, Solution, solve_head
from drivetrain.training.run import Run
from drivetrain.training.sparse_rows import SparseRows


def announce_solving(run: Run) -> None:
    """Record whether the heads are solved, or the reason why not if nothing else is trained at first."""
    if run.solves_heads:
        text = f"solved directly instead of {_describe_replaced_epochs(run)} (train.solve_heads)"
        if run.only_solves_heads:
            text += "; batch size, optimizer, rates, schedule and dropout have no effect"
        run.events.add("heads", text)
    elif run.unsolved_reason and not run.counters.step:
        run.events.add("heads", f"trained step by step, not solved: {run.unsolved_reason}")


def solve_heads(run: Run) -> None:
    """Solve the heads of the run's network, and advance to the end of the replaced epochs."""
    fault_point("solve heads", run)
    began = time.monotonic()
    with run.clock.phase("train"):
        training = _collect_in_batches(run, run.dataset.train)
        held_out = _collect_in_batches(run, run.dataset.validation)
        collected = time.monotonic()
        solutions = {}
        for name, head in run.solvable_heads.items():
            solutions[name] = solve_head(
                training[name],
                held_out[name],
                run.objective.losses[name],
                head.outputs,
                has_bias=head.has_bias,
                has_time=lambda: run.time_left() > 0,
            )
    loss = sum(run.dataset.heads[name].weight * solution.training_loss for name, solution in solutions.items())
    with run.signals.protect_section(), torch.no_grad():
        for name, head in run.solvable_heads.items():
            head.load(solutions[name])
        _pass_replaced_epochs(run)
        assert run.metrics is not None
        run.metrics.write(run.counters.step, run.counters.epoch, {"train/loss": loss})
    seconds = f"{collected - began:.1f} s for the features, {time.monotonic() - collected:.1f} s for the solution"
    run.events.add("heads", f"{'; '.join(map(_describe_solution, solutions.items()))} ({seconds})", run.counters.step)


def _describe_solution(head: tuple[str, Solution]) -> str:
    name, solution = head
    return (
        f"{name + ' ' if name else ''}solved with penalty {solution.penalty:g} of {solution.tried_penalties} tried: loss "
        f"{format_metric(solution.training_loss)}, validation {format_metric(solution.validation_loss)}"
    )


def _describe_replaced_epochs(run: Run) -> str:
    """Describe the epochs that are not trained."""
    later = run.built_model.unfreezing.epochs
    epochs = later[0] if later else run.job.train.epochs
    if epochs == 1:
        return "the epoch"
    return f"the first {epochs} epochs" if later else f"all {epochs} epochs"


def _pass_replaced_epochs(run: Run) -> None:
    """Advance the counters to the evaluation at the end of the replaced epochs."""
    counters, later = run.counters, run.built_model.unfreezing.epochs
    counters.solved = True
    counters.samples += len(run.dataset.train)
    if later:
        # The schedule counts steps, so unfrozen layers learn at the rate of their epoch.
        counters.epoch = later[0] - 1
        counters.step = min(run.total_steps, later[0] * run.batches.per_epoch)
    else:
        counters.step += 1


def _collect_in_batches(run: Run, split: Split) -> dict[str, HeadFeatures]:
    return validation.with_smaller_batches(run, "the features", partial(_collect_features, run, split))


def _collect_features(run: Run, split: Split, size: int) -> dict[str, HeadFeatures]:
    """Collect the features and targets of all samples by head; features of several heads are stored once."""
    head_inputs: dict[str, tuple[Tensor, ...]] = {}
    features: dict[str, list[Tensor | SparseRows]] = {name: [] for name in run.solvable_heads}
    targets: dict[str, list[Tensor]] = {name: [] for name in run.solvable_heads}
    run.model.eval()
    with contextlib.ExitStack() as hooks, forward.without_gradients(run.model):
        for name, head in run.solvable_heads.items():
            hooks.enter_context(
                head.module.register_forward_pre_hook(
                    lambda _, inputs, name=name: head_inputs.__setitem__(name, inputs)
                )
            )
        for batch in validation.micro_batches(run, split, size):
            run.step.forward.outputs_in_fp32(batch.inputs)
            # Heads with the same input tensor share the features of the first of them.
            first_readers: dict[int, str] = {}
            owners = {name: first_readers.setdefault(id(inputs[0]), name) for name, inputs in head_inputs.items()}
            for name, head in run.solvable_heads.items():
                targets[name].append(batch.targets[name])
                if owners[name] == name:
                    features[name].append(head.read_features(head_inputs[name]))
    # Joined outside of inference mode, so that gradients can be computed from them.
    joined = {name: run.solvable_heads[name].join_features(rows) for name, rows in features.items() if rows}
    return {name: HeadFeatures(joined[owners[name]], torch.cat(values).clone()) for name, values in targets.items()}
