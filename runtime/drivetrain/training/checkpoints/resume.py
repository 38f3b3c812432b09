"""Checks whether a checkpoint fits the run that resumes from it, and what has changed in the environment since."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from drivetrain.data.dataset import Dataset, JointTargets, Split
from drivetrain.errors import CheckpointError
from drivetrain.hardware.facts import Hardware
from drivetrain.models import safetensors_file
from drivetrain.training.checkpoints import checkpoint

RESUMES = "after a kill, the same command resumes"
PROMISE = f"{RESUMES}; results stay bit-identical on the same image, CPU model, threads, processes"


def identity(hardware: Hardware, dataset: Dataset) -> dict[str, str]:
    """Everything beside spec and plan that the exact bits of a run depend on."""
    return {
        "image": hardware.image or "none",
        "cpu": hardware.cpu.model + (f", kept back by {hardware.cpu.capped}" if hardware.cpu.capped else ""),
        "gpu": hardware.gpu.name if hardware.gpu else "none",
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "processes": "1",
        "parts": "1",
        "data": f"{_fingerprint(dataset.train)}, {_fingerprint(dataset.validation)}",
    }


def promise(*, deterministic: bool, on_gpu: bool) -> str:
    """What a user may expect of a resumed run."""
    if not deterministic:
        wish = "train.deterministic: true, which can be slower" if on_gpu else "train.deterministic: true"
        return f"{RESUMES}; results are not bit-identical, for which set {wish}"
    return PROMISE.replace("CPU model", "CPU and GPU model") if on_gpu else PROMISE


def _fingerprint(split: Split) -> str:
    """Digest of a split's size and targets; of its size only, if targets require reading every sample."""
    digest = hashlib.sha256()
    for name, values in {} if isinstance(split, JointTargets) else split.targets.items():
        digest.update(name.encode() + values.detach().cpu().contiguous().numpy().tobytes())
    return f"{len(split)} samples ({digest.hexdigest()[:12]})"


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One line for everything that has changed since the checkpoint.

    Raises:
        CheckpointError: if the data has changed.
    """
    if before["data"] != now["data"]:
        raise CheckpointError(
            f"the data has changed: it was {before['data']} when the run was saved and is {now['data']} now",
            "the data that the run was started with",
            "restore it, or start a new run with --new",
        )
    return [
        f"{name} is {now[name]}, was {before[name]}: results may no longer be bit-identical to an uninterrupted run"
        for name in now
        if now[name] != before.get(name, now[name])
    ]


def whole_number(loaded: checkpoint.Loaded, name: str, text: str) -> int:
    """A number that the identity of a checkpoint holds as text.

    Raises:
        CheckpointError: if it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise CheckpointError(
            f"checkpoint {loaded.path}: {name} is {text!r}",
            "a whole number, as the run wrote it",
            "restore the checkpoint, or start a new run with --new",
        ) from None


def check_fit(
    loaded: checkpoint.Loaded, state: Mapping[str, object], tensors: Mapping[str, safetensors_file.Tensors]
) -> None:
    """Check that a checkpoint has exactly what a run needs.

    Args:
        loaded: the checkpoint.
        state: the state of the run before anything is loaded.
        tensors: its tensors, without the optimizer's.

    Raises:
        CheckpointError: naming what is missing, unknown or of another type.
    """
    scaler = loaded.state.get("scaler")
    # After a collapse of fp16 a run continues in fp32, and so without the scaler's state.
    free = {"last": loaded.state.get("last")} | ({} if scaler and state["scaler"] else {"scaler": scaler})
    wrong = _unlike(loaded.state, {**state, **free}, "")
    wrong += [f"{stem}.safetensors" for stem in {*tensors, "optimizer"} ^ set(loaded.tensors)]
    for stem, group in tensors.items():
        stored = {name: (value.shape, value.dtype) for name, value in loaded.tensors.get(stem, {}).items()}
        expected = {name: (value.shape, value.dtype) for name, value in group.items()}
        wrong += [
            f"{stem}: {name}" for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name)
        ]
    count = len(loaded.tensors.get("optimizer", {}))
    if loaded.state.get("moments") != count:
        wrong.append(f"optimizer.safetensors: {count} tensors instead of {loaded.state.get('moments')}")
    if wrong:
        remainder = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(
            f"checkpoint {loaded.path} does not fit this run: {', '.join(sorted(wrong)[:3])}{remainder} "
            "missing, unknown or of another type",
            "a complete checkpoint of the same job",
            "undo the change of the model or the job, or start a new run with --new",
        )


def _unlike(stored: object, expected: object, key_path: str) -> list[str]:
    """Where two trees of plain values differ in keys or types; None matches any type."""
    if isinstance(expected, dict) and isinstance(stored, dict):
        places = {key: f"{key_path}.{key}".lstrip(".") for key in stored.keys() | expected.keys()}
        wrong = [places[key] for key in stored.keys() ^ expected.keys()]
        return wrong + [
            w for key in stored.keys() & expected.keys() for w in _unlike(stored[key], expected[key], places[key])
        ]
    kinds = [
        next((kind for kind in (bool, (int, float), str, list, dict) if isinstance(value, kind)), None)
        for value in (stored, expected)
    ]
    return [] if kinds[0] == kinds[1] or stored is None or expected is None else [key_path]
