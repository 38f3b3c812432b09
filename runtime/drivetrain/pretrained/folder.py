"""Finds pretrained networks in Hugging Face format, in a local folder or on the hub, and checks their files.

Weights are loaded from safetensors only, and code in the same folder is never run.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from logging import CRITICAL
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from drivetrain.errors import CheckpointError, SpecError
from drivetrain.hardware.cgroup import read_memory_limit
from drivetrain.job import Job
from drivetrain.job.formatting import readable
from drivetrain.pretrained import families, hub, hub_name
from drivetrain.pretrained.convert import PICKLE_SUFFIXES
from drivetrain.pretrained.hub import Fetched
from drivetrain.pretrained.hub_error import HubError
from drivetrain.system.files import TAKE_FILE, describe_special_file, is_below, read_json
from drivetrain.system.installation import INSTALL_TORCH
from drivetrain.system.units import format_bytes

if TYPE_CHECKING:
    from torch import nn

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
"""Patterns of the files that are read."""
ENCODERS = "encoders such as bert, distilbert, roberta"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LARGE_WEIGHTS = ("weights that fit into memory", "raise limits.memory, or use a smaller network")
"""Second and third part of the error about weights that do not fit into memory."""
_POSSIBLE = "a Hugging Face folder with config.json and model.safetensors, or a name on the hub"


@dataclass(frozen=True)
class WeightsFolder:
    """A folder with config.json and safetensors that a job names."""

    job: Job
    folder: Path
    origin: str
    """Name and commit on the hub; empty for a local folder."""

    def refuse(self, description: str, possible: str, action: str) -> NoReturn:
        """Raise a SpecError about the network's name in the job."""
        _refuse(self.job, description, possible, action)


@dataclass(frozen=True)
class Pretrained(WeightsFolder):
    """A folder with a configuration that transformers can read."""

    config: Any
    """A transformers.PretrainedConfig."""

    def network(self) -> nn.Module:
        """Load the network with its weights in float32; raises SpecError if the weights do not fit the network."""
        with quiet_transformers() as transformers:
            try:
                loaded, loading_info = transformers.AutoModel.from_pretrained(
                    self.folder,
                    config=self.config,
                    use_safetensors=True,
                    local_files_only=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                )
            except Exception as error:  # each kind of broken file raises an error of another library
                self.refuse(f"{self.folder} cannot be loaded: {_first_line(error)}", _POSSIBLE, "use another folder")
        missing = [name for name in loading_info["missing_keys"] if not name.startswith("pooler.")]
        if missing:
            unexpected = ", ".join(sorted(loading_info["unexpected_keys"])[:3]) or "no others"
            self.refuse(
                f"{self.folder} lacks {len(missing)} tensors of the network: {', '.join(sorted(missing)[:3])}; "
                f"it has {unexpected}",
                "weights that match config.json",
                "check that both come from the same network",
            )
        return loaded.float()  # type: ignore[no-any-return]


def find(job: Job, name: str) -> Pretrained:
    """Find a network of transformers in a local folder or by its name on the hub.

    Raises:
        SpecError: if it does not exist or cannot be used.
    """
    weights = locate(job, name)
    return Pretrained(job, weights.folder, weights.origin, _read_config(weights))


def locate(job: Job, name: str) -> WeightsFolder:
    """Find the folder of a local path or of a name on the hub; only files that are not cached are downloaded.

    Raises:
        SpecError: if it does not exist or cannot be used.
    """
    path = job.resolve(name)
    if path.is_file():
        _refuse(job, f"{path} is a file", _POSSIBLE, "name its folder")
    origin = ""
    if path.is_dir():
        folder = path
        _refuse_special_files(job, folder)
        if getattr(getattr(job, "model", None), "revision", None):
            problem = job.problem(
                ("model", "revision"), f"{path} is a local folder", "a revision of a name on the hub", "remove it"
            )
            raise SpecError(problem)
    elif HUB_NAME.fullmatch(name):
        fetched_network = fetch(job, name)
        folder, origin = fetched_network.folder, fetched_network.origin
    else:
        _refuse(job, f"{path} does not exist", _POSSIBLE, "correct the path; it is relative to the job's folder")
    weights = WeightsFolder(job, folder, origin)
    _check_files(weights)
    return weights


def fetch(job: Job, name: str, *, update: bool = False) -> Fetched:
    """Download the network of a name on the hub; a resumed run uses its earlier commit.

    Args:
        job: job, which may name a revision.
        name: name of the network.
        update: whether to ask the hub for the current commit of the revision.

    Raises:
        SpecError: if it does not exist, or cannot be downloaded or used.
        StorageError: if the cache cannot be written.
    """
    revision = getattr(getattr(job, "model", None), "revision", None) or hub.MAIN
    try:
        fetched_network = hub.fetch_network(name, job.pretrained_commit or revision, update=update)
    except HubError as error:
        if not error.offline:
            _refuse(job, f"{name!r}: {error.given}", error.possible, error.action)
        action = f"{error.action}; on a machine with a network, `drivetrain fetch {job.document.name}` fills the cache"
        if "DRIVETRAIN_IMAGE" in os.environ:
            action += "; `docker compose` has a network with DRIVETRAIN_NETWORK=bridge"
        _refuse(job, f"{name!r} is not a local folder, and {error.given}", error.possible, action)
    job.fix_commit(fetched_network.commit)
    return fetched_network


def _check_files(weights: WeightsFolder) -> None:
    """Check that a folder has config.json and safetensors that fit into memory; raises SpecError or CheckpointError."""
    folder = weights.folder
    names = sorted(path.name for path in folder.iterdir())
    if "config.json" not in names:
        weights.refuse(f"{folder} has no config.json", _POSSIBLE, "save it with save_pretrained(folder)")
    if any(name in names for name in WEIGHTS):
        _check_index(weights)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        limit = read_memory_limit()
        if size > limit:
            description = (
                f"the weights in {folder} take {format_bytes(size)}, and the memory limit is {format_bytes(limit)}"
            )
            raise CheckpointError(description, *LARGE_WEIGHTS)
        return
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES) and name != "training_args.bin"]
    other_names = [name for name in names if name.endswith(".safetensors")]
    if pickles:
        weights.refuse(
            f"{folder} has its weights only as pickle, which can run code when it is loaded: {', '.join(pickles)}",
            "weights in model.safetensors",
            f"run `drivetrain fetch {weights.job.document.name}`, which converts the tensors in the pickle",
        )
    if other_names:
        weights.refuse(
            f"{folder} has its weights as {', '.join(other_names)}", "the name model.safetensors", "rename the file"
        )
    weights.refuse(f"{folder} has no weights", _POSSIBLE, "save them with save_pretrained(folder)")


def _check_index(weights: WeightsFolder) -> None:
    """Refuse an index that names weights outside of the folder; raises SpecError."""
    index_file = weights.folder / WEIGHTS[1]
    content = read_json(index_file)
    names = content.get("weight_map") if isinstance(content, dict) else None
    for name in names.values() if isinstance(names, dict) else ():
        if not is_below(weights.folder, name):
            weights.refuse(
                f"{index_file} names {readable(str(name))!r}, which is not below {weights.folder}",
                "weights in the folder itself",
                "use another folder",
            )


def _read_config(weights: WeightsFolder) -> Any:
    """Read the configuration with transformers; raises SpecError if it cannot, or would load other files or code."""
    file = weights.folder / "config.json"
    external_entry, config = families.find_external_entry(read_json(file)), None
    if not external_entry:
        with quiet_transformers(weights.job) as transformers:
            try:
                config = transformers.AutoConfig.from_pretrained(
                    weights.folder, local_files_only=True, trust_remote_code=False
                )
            except Exception as error:  # broken files raise errors of several libraries
                weights.refuse(
                    f"{file} cannot be used: {_first_line(error)}",
                    "a network that is part of transformers",
                    "use another folder",
                )
        # The defaults of some families name a network of timm.
        external_entry = families.find_external_entry(config.to_dict())
    if external_entry:
        weights.refuse(
            f"{file}: {external_entry} would load other files or code",
            "a network that is part of transformers, with its weights in the same folder",
            "use another folder",
        )
    return config


@contextlib.contextmanager
def closed_hub() -> Iterator[None]:
    """Keep all libraries from connecting to the hub in the block, for example for telemetry."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    # The library reads its environment variables only when it is imported, which a program may already have done.
    settings = {"HF_HUB_OFFLINE": True, "HF_HUB_DISABLE_TELEMETRY": True}
    original_settings = {name: getattr(constants, name) for name in settings}
    vars(constants).update(settings)
    try:
        yield
    finally:
        vars(constants).update(original_settings)


@contextlib.contextmanager
def quiet_transformers(job: Job | None = None) -> Iterator[Any]:
    """Yield the transformers library, without progress bars, log and warnings, and without access to the hub.

    Raises:
        SpecError: if the library is not installed.
    """
    with closed_hub():
        yield from _import_quietly(job)


def _import_quietly(job: Job | None) -> Iterator[Any]:
    """Yield the transformers library without progress bars, log and warnings; raises SpecError if it is missing."""
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        description = "this network needs the package transformers, which is not installed here"
        possible, action = (
            "an environment with transformers",
            f"`{INSTALL_TORCH}` or pip install transformers, or use an image",
        )
        problems = [job.problem(("model",), description, possible, action)] if job else description
        raise SpecError(problems, possible, action) from None
    level, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield transformers
    finally:
        logging.set_verbosity(level)
        if shows_progress:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _refuse_special_files(job: Job, folder: Path) -> None:
    """Refuse a folder with a pipe, socket or device, because a library that reads it would wait forever."""
    for file in sorted(folder.iterdir()):
        kind = describe_special_file(file)
        if kind:
            _refuse(job, f"{file} {kind}", _POSSIBLE, TAKE_FILE)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300].rstrip(".") if text else type(error).__name__


def _refuse(job: Job, description: str, possible: str, action: str) -> NoReturn:
    raise job.spec_error(hub_name.find_weights_key(job), description, possible, action)
