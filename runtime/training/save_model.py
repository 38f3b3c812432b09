"""Writes the `model/` folder at the end of training: the weights of its best checkpoint and its configuration."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from runtime.data.dataset import Head
from runtime.models import code_consent, saved_model
from runtime.pretrained.earlier_run import CONFIG
from runtime.system.console import say
from runtime.training.checkpoints.final_weights import FinalWeights
from runtime.training.run import Run


def save_model(run: Run, chosen: FinalWeights) -> Path:
    """Write the `model/` folder of a run with the chosen weights.

    Raises:
        StorageError: if it cannot be written.
    """
    source = chosen.loaded
    groups = {"model": source.tensors.get("ema", source.tensors["model"])}
    if "ema" in source.tensors:
        groups["raw"] = source.tensors["model"]
    config: dict[str, object] = {
        "task": run.job.task,
        "builder": run.network.builder,
        "arguments": run.network.arguments,
        "heads": [asdict(_with_weights(run, head)) for head in run.dataset.heads.values()],
        "preprocessing": run.dataset.preprocessing,
        "trained": {"run": run.folder.name, "step": chosen.step, "epoch": chosen.epoch, chosen.metric: chosen.value},
    }
    code = run.network.code
    if code is None:
        return saved_model.commit(run.folder / "model", groups, config, {})
    folder = saved_model.commit(run.folder / "model", groups, config | {"code": code.digests()}, code.sources)
    if why := code_consent.keep(folder / CONFIG):
        say(
            f"model: its code cannot be recorded as yours because {why}; predict, evaluate and export will ask for "
            "--run-code"
        )
    return folder


def _with_weights(run: Run, head: Head) -> Head:
    """The head with the class weights of the training as numbers: `balanced` would need the training data."""
    weights = run.step.objective.losses[head.name].class_weights
    return (
        head if weights is None else replace(head, class_weights=dict(zip(head.classes, weights.tolist(), strict=True)))
    )
