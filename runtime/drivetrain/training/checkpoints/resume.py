"""Checks that a checkpoint fits the run that resumes from it, and lists changes of the machine since then."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from drivetrain.data.dataset import Dataset, JointTargets, Split
from drivetrain.data.notes import list_names
from drivetrain.errors import CheckpointError
from drivetrain.hardware.facts import Hardware
from drivetrain.models import safetensors_file
from drivetrain.training.checkpoints import checkpoint

RESUMES = "after a kill, the same command resumes"
PROMISE = f"{RESUMES}; results stay bit-identical on the same image, CPU model, threads, processes"


def collect_identity(hardware: Hardware, dataset: Dataset) -> dict[str, str]:
    """Collect the facts besides spec and plan that determine the exact bits of a run, by name."""
    return {
        "image": hardware.image or "none",
        "cpu": hardware.cpu.model + (f", kept back by {hardware.cpu.capped}" if hardware.cpu.capped else ""),
        "gpu": hardware.gpu.name if hardware.gpu else "none",
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "processes": "1",
        "data": f"{_fingerprint(dataset.train)}, {_fingerprint(dataset.validation)}",
    }


def describe_promise(*, deterministic: bool, on_gpu: bool) -> str:
    """Return the line about resuming a run, and whether its results are then bit-identical."""
    if not deterministic:
        setting = "train.deterministic: true, which can be slower" if on_gpu else "train.deterministic: true"
        return f"{RESUMES}; results are not bit-identical unless you set {setting}"
    return PROMISE.replace("CPU model", "CPU and GPU model") if on_gpu else PROMISE


def _fingerprint(split: Split) -> str:
    """Return the size of a split and a digest of its targets, empty if targets require reading every sample."""
    digest = hashlib.sha256()
    for name, values in {} if isinstance(split, JointTargets) else split.targets.items():
        digest.update(name.encode() + values.detach().cpu().contiguous().numpy().tobytes())
    return f"{len(split)} samples ({digest.hexdigest()[:12]})"


def list_changes(saved: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """List the entries of `collect_identity` that have changed since the checkpoint, one line each.

    Raises:
        CheckpointError: if the data has changed.
    """
    if saved["data"] != current["data"]:
        raise CheckpointError(
            f"the data has changed: it was {saved['data']} when the run was saved and is {current['data']} now",
            "the data that the run was started with",
            "restore it, or start a new run with --new",
        )
    changed = [name for name in current if current[name] != saved.get(name, current[name])]
    effect = "results may no longer be bit-identical to an uninterrupted run"
    return [f"{name} is {current[name]}, was {saved[name]}: {effect}" for name in changed]


def check_fit(
    loaded: checkpoint.Loaded, state: Mapping[str, object], tensors: Mapping[str, safetensors_file.Tensors]
) -> None:
    """Check that a checkpoint has exactly the state and the tensors that a run needs.

    Args:
        loaded: checkpoint to check.
        state: state of the run before anything is loaded.
        tensors: tensors of the run by file, then by name, without the optimizer's tensors.

    Raises:
        CheckpointError: if something is missing, unknown or of another type; names it.
    """
    scaler = loaded.state.get("scaler")
    # After a collapse of fp16 a run continues in fp32, without the scaler's state.
    unchecked = {"last": loaded.state.get("last")} | ({} if scaler and state["scaler"] else {"scaler": scaler})
    misfits = _list_type_differences(loaded.state, {**state, **unchecked}, "")
    misfits += [f"{stem}.safetensors" for stem in {*tensors, "optimizer"} ^ set(loaded.tensors)]
    for stem, needed in tensors.items():
        stored = {name: (value.shape, value.dtype) for name, value in loaded.tensors.get(stem, {}).items()}
        expected = {name: (value.shape, value.dtype) for name, value in needed.items()}
        names = stored.keys() | expected.keys()
        misfits += [f"{stem}: {name}" for name in names if stored.get(name) != expected.get(name)]
    optimizer_tensors = len(loaded.tensors.get("optimizer", {}))
    if loaded.state.get("moments") != optimizer_tensors:
        misfits.append(f"optimizer.safetensors: {optimizer_tensors} tensors instead of {loaded.state.get('moments')}")
    if misfits:
        raise CheckpointError(
            f"checkpoint {loaded.path} does not fit this run: {list_names(sorted(misfits), 3)} "
            "missing, unknown or of another type",
            "a complete checkpoint of the same job",
            "undo the change of the model or the job, or start a new run with --new",
        )


def _list_type_differences(stored: object, expected: object, key_path: str) -> list[str]:
    """List the key paths at which two trees of plain values differ in keys or types; None matches any type."""
    if isinstance(expected, dict) and isinstance(stored, dict):
        paths = {key: f"{key_path}.{key}".lstrip(".") for key in stored.keys() | expected.keys()}
        differences = [paths[key] for key in stored.keys() ^ expected.keys()]
        for key in stored.keys() & expected.keys():
            differences += _list_type_differences(stored[key], expected[key], paths[key])
        return differences
    if stored is None or expected is None or _get_basic_type(stored) == _get_basic_type(expected):
        return []
    return [key_path]


def _get_basic_type(value: object) -> object:
    """Return the type of a plain value, with int and float as one type; None for any other value."""
    for kind in (bool, (int, float), str, list, dict):
        if isinstance(value, kind):
            return kind
    return None
