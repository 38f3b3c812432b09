"""Takes a run from one stage of `model.unfreeze` to another: forwards where an epoch begins, back in a rollback.

The stage is a function of the epoch, so nothing is saved, and a resumed run is in the same one. The optimizer holds all
parameters that are trained at any time; it has no state for a parameter before its first gradient.
"""

from __future__ import annotations

from runtime import optimizations
from runtime.data.labels import listed
from runtime.models import layer_names
from runtime.models.freeze import frozen_parts
from runtime.training.run import Run

AGAIN = ("feature_cache", "unpadding", "compile", "cuda_graphs")
"""Optimizations of the forward pass, which depend on what is frozen; in the order in which they are applied."""


def enter(run: Run) -> bool:
    """Freeze and unfreeze as in the present epoch; returns whether that changed anything."""
    unfreezing, epoch = run.network.unfreezing, run.counters.epoch
    if unfreezing.stage(epoch) == run.stage:
        return False
    run.stage = unfreezing.stage(epoch)
    unfreezing.apply(run.model, epoch)
    if not run.network.freeze.train_mode:
        run.frozen = list(frozen_parts(run.model))
    _apply_again(run)
    return True


def announce(run: Run) -> None:
    """Record what is unfrozen, at the beginning of the epoch in which it is."""
    unfreezing, epoch = run.network.unfreezing, run.counters.epoch
    names = unfreezing.names(epoch)
    if not names or run.counters.batch:
        return
    total = sum(p.numel() for p in run.model.parameters())
    trained = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    text = f"epoch {epoch + 1}: {listed(layer_names.layers(names), 6)} unfrozen, {trained:,} of {total:,} parameters"
    if run.plan.value("feature_cache") is True:
        text += f"; feature_cache: {run.cached}" if run.cached else "; feature_cache is off from here on"
    run.events.add("unfreeze", text, run.counters.step)


def _apply_again(run: Run) -> None:
    """Apply what depends on the frozen layers to the whole network and its samples."""
    if run.replaced is not None:
        run.dataset, run.replaced, run.cached = run.replaced, None, ""
        run.batches.split = run.dataset.train
    failed = run.step.compile_error
    run.configure_step(forward=run.model, packed_forward=getattr(run.model, "packed", None), packed=False)
    for optimization in optimizations.every():
        value = run.plan.value(optimization.name)
        again = optimization.name in AGAIN and value != optimization.off
        if again and not (failed and optimization.stage is optimizations.Stage.COMPILE):
            optimization.apply(run, value)
    if failed:
        run.configure_step(compiled=None)
