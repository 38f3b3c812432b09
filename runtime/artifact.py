"""The `model/` folder: final weights in safetensors, configuration, labels and preprocessing; enough to predict.

model/  model.safetensors   the weights of the best evaluation (their average, if the job keeps one)
        raw.safetensors     the same without averaging, if the job keeps an average
        config.json         how to build the network, its heads, the preprocessing, and where it came from
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
from torch import Tensor

import runtime
from runtime import checkpoint
from runtime.files import storage_error, sync_folder, write_json
from runtime.run import Run

FORMAT = 1


def write(run: Run) -> Path:
    """Write the folder for the best evaluation of a run.

    Raises:
        StorageError: if it cannot be written.
    """
    best = run.watch.best
    source = checkpoint.load(run.checkpoints / f"best-{best.step}")
    weights = {"model": source.tensors.get("ema", source.tensors["model"])}
    if "ema" in source.tensors:
        weights["raw"] = source.tensors["model"]
    config = {
        "format": FORMAT,
        "drivetrain": runtime.__version__,
        "task": run.job.task,
        "builder": run.network.builder,
        "arguments": run.network.arguments,
        "heads": [asdict(head) for head in run.dataset.heads.values()],
        "preprocessing": run.dataset.preprocessing,
        "trained": {"run": run.folder.name, "step": best.step, "epoch": best.epoch + 1, best.metric: best.best},
    }
    return _commit(run.folder / "model", weights, config)


def _commit(final: Path, weights: dict[str, dict[str, Tensor]], config: dict[str, object]) -> Path:
    beside = final.with_name(f".tmp-model-{os.getpid()}")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for stem, tensors in weights.items():
            safetensors.torch.save_file(tensors, beside / f"{stem}.safetensors")
        write_json(beside / "config.json", config)
        if final.exists():
            shutil.rmtree(final)
        beside.rename(final)
        sync_folder(final.parent)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise storage_error(final, error) from None
    return final
