"""Finds the trained model of an earlier run, where a job starts (`model: {from: runs/NAME-001}`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from drivetrain.errors import CheckpointError
from drivetrain.job import Job
from drivetrain.job.model import EarlierRun, Freeze
from drivetrain.job.user_files import suggest_nearest_path
from drivetrain.pretrained.model_config import CONFIG, read_config
from drivetrain.storage.remote_address import is_remote
from drivetrain.system import run_files
from drivetrain.system.run_files import STATE_FILE
from drivetrain.system.run_records import RunState
from drivetrain.tasks import modality_of

WEIGHTS = "model.safetensors"
POSSIBLE = f"the folder of a finished run, or its model/ folder with {CONFIG} and {WEIGHTS}"


@dataclass(frozen=True)
class EarlierModel:
    """Description of the network and its data in a model folder, without the weights."""

    job: Job
    """Job that starts from the model."""
    folder: Path
    builder: str
    arguments: Mapping[str, Any]
    """Arguments of the builder."""
    heads: tuple[Mapping[str, Any], ...]
    """Descriptions from which `data.dataset.head` builds the heads."""
    preprocessing: Mapping[str, Any]
    freeze: Freeze

    @property
    def config(self) -> SimpleNamespace:
        """Configuration of a network of transformers, as `families` reads it; empty for other networks."""
        return SimpleNamespace(**(self.arguments.get("config") or {}))

    def refuse(self, description: str, possible: str, action: str, key: tuple[str, ...] | None = None) -> NoReturn:
        """Raise a SpecError about the name of the run in the job, or about another key."""
        raise self.job.spec_error(key or self.job.model_key("name"), description, possible, action)


def find(job: Job) -> EarlierModel | None:
    """Find the model of the earlier run that the job names; None if it names no run.

    Raises:
        SpecError: if the model does not exist, is incomplete or damaged, or was trained on another kind of data.
    """
    spec = getattr(job, "model", None)
    if not isinstance(spec, EarlierRun):
        return None
    folder = _find_folder(job, spec.name)
    try:
        config = read_config(folder)
    except CheckpointError as error:
        _refuse(job, error.given, error.possible, error.action)
    if config["builder"] in ("own", "python"):
        _refuse(
            job,
            f"{folder} is a network of your own code",
            "a built-in network, or one of transformers or timm",
            f"name its file, and start from the weights: model: {{file: ..., weights: {folder / WEIGHTS}}}",
        )
    trained_kind = config["preprocessing"].get("kind")
    job_kind = modality_of(job).kind
    if trained_kind != job_kind:
        mismatch = f"{folder} was trained on {trained_kind}, and {job.task} trains on {job_kind}"
        _refuse(job, mismatch, f"a run on {job_kind}", "use another run")
    return EarlierModel(
        job,
        folder,
        config["builder"],
        config["arguments"],
        tuple(config["heads"]),
        config["preprocessing"],
        spec.freeze,
    )


def model_folder(path: Path) -> Path | None:
    """Return the model folder of a run folder, or the path itself if it is a model folder; None for another folder."""
    for folder in (path, path / "model"):
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return folder
    return None


def _find_folder(job: Job, name: str) -> Path:
    """Find the model folder of a run; raises SpecError, with advice by the reason, if it cannot be used."""
    path = job.resolve(name)
    folder = model_folder(path)
    if folder:
        link = next(run_files.find_links(folder), None)
        if link:
            _refuse(job, link, run_files.LINKS_POSSIBLE, run_files.LINKS_ACTION)
        return folder
    if path.is_file():
        action = "name its folder; or write `weights:` to use the file in a network that the job names"
        _refuse(job, f"{path} is a file", POSSIBLE, action)
    if is_remote(name) and not path.exists():
        _refuse(
            job,
            f"{name} has no copy here",
            "a copy on this machine",
            f"`drivetrain fetch {job.document.name}` and `train` download it",
        )
    if not path.exists():
        _refuse(
            job,
            f"{path} does not exist",
            POSSIBLE,
            suggest_nearest_path((job.folder, Path.cwd()), name)
            or "correct the path; it is relative to the job's folder, then to the working folder",
        )
    if (path / STATE_FILE).exists():
        status = RunState.read(path).status or "broken"
        _refuse(
            job, f"{path} has no trained model: the run is {status}", POSSIBLE, "finish that run, or use another one"
        )
    _refuse(job, f"{path} has no trained model", POSSIBLE, "use such a folder")


def _refuse(job: Job, description: str, possible: str, action: str) -> NoReturn:
    raise job.spec_error(job.model_key("name"), description, possible, action)
