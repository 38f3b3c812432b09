"""Writes and reads the `model/` folder, which has everything that `predict` needs.

model/  model.safetensors   weights of the best evaluation (averaged, if the job keeps an EMA)
        raw.safetensors     the same weights without averaging, if the job keeps an EMA
        config.json         values to build the network, its heads, the preprocessing, and the origin of the weights
        code/               the user's Python files, if they define the network
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn

from drivetrain.data.dataset import Head, head_from_json
from drivetrain.data.notes import list_names
from drivetrain.errors import CheckpointError
from drivetrain.models import safetensors_file
from drivetrain.models.described_network import build_described
from drivetrain.models.networks import user_network
from drivetrain.pretrained.earlier_run import POSSIBLE, WEIGHTS, model_folder
from drivetrain.pretrained.model_config import CONFIG, FORMAT, digest_values, read_config
from drivetrain.system.fault_points import fault_point
from drivetrain.system.files import check_utf8, hash_file, storage_error, sync_folder
from drivetrain.system.run_files import STATE_FILE, RunFiles, refuse_links
from drivetrain.system.run_records import RunState
from drivetrain.system.version import VERSION
from drivetrain.tasks import find_stored_modality


@dataclass(frozen=True)
class SavedModel:
    """A trained network, loaded from its folder."""

    folder: Path
    task: str
    network: nn.Module
    """Network on the CPU, in evaluation mode."""
    heads: dict[str, Head]
    preprocessing: dict[str, Any]
    trained: dict[str, Any]
    """Run, step, epoch and metric of the weights, as in config.json."""


def commit(
    final: Path, groups: dict[str, dict[str, Tensor]], config: Mapping[str, object], code: Mapping[str, bytes]
) -> Path:
    """Write a model folder atomically, replacing an older one.

    Args:
        final: path of the folder.
        groups: tensors by name, grouped by stem of their file.
        config: content of `config.json` except its format, our version and the digests.
        code: content of the user's Python files by name, if they define the network.

    Raises:
        StorageError: if the folder cannot be written.
    """
    fault_point("commit model")
    unfinished = final.with_name(f".tmp-model-{os.getpid()}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for stem, tensors in groups.items():
            safetensors_file.write(unfinished / f"{stem}.safetensors", tensors)
        for name, content in code.items():
            (unfinished / "code" / name).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / "code" / name).write_bytes(content)
        weights = hash_file(unfinished / WEIGHTS)
        values = {"format": FORMAT, "drivetrain": VERSION, **config, "weights": weights}
        RunFiles(unfinished).write_json(CONFIG, values | {"content": digest_values(values)})
        if final.exists():
            shutil.rmtree(final)
        unfinished.rename(final)
        sync_folder(final.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise storage_error(final, error) from None
    return final


def find(path: Path) -> Path:
    """Find the model folder of a run folder, or the path itself; raises CheckpointError if there is none, or for a link."""
    check_utf8(path)
    folder = model_folder(path)
    if folder:
        refuse_links(folder)
        return folder
    description = f"{path} has no trained model"
    if not path.is_dir():
        description = f"{path} is {'a file' if path.exists() else 'missing'}"
    elif (path / STATE_FILE).exists():
        description += f": the run is {RunState.read(path).status or 'broken'}"
    raise CheckpointError(description, POSSIBLE, "use such a folder; `drivetrain train` resumes an unfinished run")


def load(path: Path, *, consent: bool = False) -> SavedModel:
    """Load the model of a run folder, or of a model folder that was copied elsewhere.

    Args:
        path: run folder or model folder.
        consent: whether the user agreed to run the code of a model folder outside of its run.

    Raises:
        CheckpointError: if there is no model, it is incomplete, or it needs code that may not be run.
    """
    folder = find(path)
    config = read_config(folder)
    network = _build_network(folder, config, consent)
    if find_stored_modality(config["preprocessing"]).is_user_code:
        config["preprocessing"]["code"] = str(folder / "code")
    _load_weights(network, folder, config["weights"])
    try:
        heads = {row["name"]: head_from_json(row) for row in config["heads"]}
    except (KeyError, TypeError) as error:
        _refuse(folder, f"{CONFIG} has a head that this version does not know: {error}")
    return SavedModel(folder, config["task"], network.eval(), heads, config["preprocessing"], config["trained"])


def _build_network(folder: Path, config: dict[str, Any], consent: bool) -> nn.Module:
    """Build the network without loading its weights."""
    if config["builder"] == "own":
        return _build_from_user_code(folder, config, consent)
    if config["builder"] == "python":
        _refuse(folder, "the network was passed in by a Python program, and only that program can build it")
    return build_described(folder, config["builder"], config["arguments"], config["preprocessing"])


def _build_from_user_code(folder: Path, config: dict[str, Any], consent: bool) -> nn.Module:
    """Build the network from the user's code."""
    kinds = {"file": str, "factory": str, "arguments": dict, "inputs": list}
    if not isinstance(config.get("code"), dict) or any(
        not isinstance(config["arguments"].get(key), kind) for key, kind in kinds.items()
    ):
        _refuse(folder, f"{CONFIG} does not name the code of the network")
    return user_network.rebuild(folder, config["code"], config["arguments"], consent=consent)


def _load_weights(network: nn.Module, folder: Path, digest: str) -> None:
    """Load the weights; names and shapes must match the network exactly, the file must match the SHA-256 `digest`."""
    try:
        stored = safetensors_file.read(folder / WEIGHTS)
    except (OSError, ValueError) as error:
        _refuse(folder, f"{WEIGHTS} cannot be read: {error}")
    names = network.state_dict().keys()
    wrong = list(safetensors_file.load(network, stored).values())
    wrong += [f"{name} is not part of the network" for name in stored if name not in names]
    if wrong:
        _refuse(folder, f"{WEIGHTS} does not fit {CONFIG}: {list_names(wrong, 3, '; ')}")
    if hash_file(folder / WEIGHTS) != digest:
        _refuse(folder, f"{WEIGHTS} was changed after the training, so its predictions would differ")


def _refuse(folder: Path, wrong: str) -> NoReturn:
    raise CheckpointError(
        f"{folder}: {wrong}",
        "a model folder as written at the end of training",
        "copy the folder again, or use the version of drivetrain that wrote it",
    )
