"""Brings the trained layers of a run to the stage of `model.unfreeze` in its epoch, and describes it for the user.

The stage is a function of the epoch: it is not saved, a resumed run is in the same stage, and a rollback returns to it.
The optimizer holds all parameters that are trained at any time; it has no state for a parameter before its first
gradient.
"""

from __future__ import annotations

from drivetrain import optimizations
from drivetrain.data.notes import list_names
from drivetrain.models import freeze, lr_groups
from drivetrain.models.freeze import find_frozen_parts
from drivetrain.system.console import Detail
from drivetrain.training.run import Run

STAGE_DEPENDENT = ("feature_cache", "unpadding", "compile", "step_graph")
"""Optimizations of the forward pass that depend on frozen layers, in the order of their application."""


def enter_stage(run: Run) -> None:
    """Freeze and unfreeze layers for the current epoch."""
    unfreezing, epoch = run.built_model.unfreezing, run.counters.epoch
    if unfreezing.stage(epoch) == run.stage:
        return
    run.stage = unfreezing.stage(epoch)
    unfreezing.apply(run.model, epoch)
    if not run.built_model.freeze.train_mode:
        run.kept_in_eval_mode = list(find_frozen_parts(run.model))
    _reapply_optimizations(run)


def announce_stage(run: Run) -> None:
    """Record the unfrozen layers at the beginning of the epoch that unfreezes them."""
    unfreezing, epoch = run.built_model.unfreezing, run.counters.epoch
    names = unfreezing.names(epoch)
    if not names or run.counters.batch:
        return
    total = sum(p.numel() for p in run.model.parameters())
    trained = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    text = (
        f"epoch {epoch + 1}: {list_names(freeze.list_layers(names), 6)} unfrozen, {trained:,} of {total:,} parameters"
    )
    if run.plan.value("feature_cache") is True:
        text += f"; feature_cache: {run.cached_prefix}" if run.cached_prefix else "; feature_cache is off from here on"
    run.events.add("unfreeze", text, run.counters.step)


def _reapply_optimizations(run: Run) -> None:
    """Apply the optimizations that depend on frozen layers again, to the whole network and its samples."""
    if run.uncached_dataset is not None:
        run.dataset = run.uncached_dataset
        run.uncached_dataset, run.cached_prefix = None, ""
        run.batches.split = run.dataset.train
    failed = run.step.forward.compile_error
    run.step.forward.use_whole_network()
    for optimization in optimizations.every():
        value = run.plan.value(optimization.name)
        is_repeated = optimization.name in STAGE_DEPENDENT and value != optimization.off
        if is_repeated and not (failed and optimization.stage is optimizations.Stage.COMPILE):
            optimization.apply(run, value)
    if failed:
        run.step.forward.compiled = None


def describe(run: Run) -> list[str]:
    """Return the lines about trained parameters and learning rates, each beginning with its subject: `model: ...`."""
    total, later = sum(p.numel() for p in run.model.parameters()), _describe_later_epochs(run)
    counts = f"model: {_count_first_epoch(run):,} of {total:,} parameters are trainable" + (
        f", {later}" if later else ""
    )
    is_whole = all(p.requires_grad for p in run.model.parameters()) and not later
    return [Detail(counts) if is_whole else counts, *describe_rates(run)]


def describe_rates(run: Run) -> list[str]:
    """Return the line about learning rates by layer; empty without `train.lr_groups`."""
    if not run.job.train.lr_groups:
        return []
    return ["learning rates: " + "; ".join(lr_groups.describe(run.lr_groups, run.model, run.job.train.optimizer.lr))]


def describe_unfreezing(run: Run) -> list[str]:
    """Return the line about gradual unfreezing; empty without `model.unfreeze`."""
    later = _describe_later_epochs(run)
    return [f"trained parameters: {_count_first_epoch(run):,} at first, {later}"] if later else []


def _count_first_epoch(run: Run) -> int:
    """Count the parameters that are trained in the first epoch."""
    later = run.built_model.unfreezing.first_epochs
    return sum(p.numel() for name, p in run.model.named_parameters() if p.requires_grad and name not in later)


def _describe_later_epochs(run: Run) -> str:
    """Return the numbers of parameters that are trained from later epochs on; empty without `model.unfreeze`."""
    sizes = {name: p.numel() for name, p in run.model.named_parameters()}
    unfreezing, count, descriptions = run.built_model.unfreezing, _count_first_epoch(run), list[str]()
    for epoch in unfreezing.epochs:
        count += sum(sizes[name] for name in unfreezing.names(epoch))
        descriptions.append(f"{count:,} from epoch {epoch + 1} on")
    return ", ".join(descriptions)
