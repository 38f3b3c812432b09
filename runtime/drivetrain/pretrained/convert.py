"""Converts a pickle of tensors to safetensors; a separate, limited process reads it (`unpickle_process`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.system.console import say
from drivetrain.system.files import blame_storage

WEIGHTS_NAME, SUFFIX = "model.safetensors", ".safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CHILD_TIMEOUT_SECONDS = 900
"""Time after which the child process is killed."""


def find_target(path: Path) -> tuple[Path, Path] | None:
    """Return the pickle of a folder or file with weights and the path of its safetensors; None if no pickle must be read."""
    if path.is_dir():
        pickles = [file for file in sorted(path.iterdir()) if file.suffix in PICKLE_SUFFIXES]
        weights = [file for file in pickles if file.name != "training_args.bin"]
        return (weights[0], path / WEIGHTS_NAME) if weights and not any(path.glob(f"*{SUFFIX}*")) else None
    is_pickle = path.suffix in PICKLE_SUFFIXES and path.is_file()
    return (path, path.with_suffix(SUFFIX)) if is_pickle and not path.with_suffix(SUFFIX).exists() else None


def convert_local(path: Path) -> None:
    """Convert the weights of a local network to safetensors if only a pickle exists, and print a line about it."""
    paths = find_target(path)
    if paths:
        convert(*paths)
        say(f"{paths[1]}: contains the tensors of {paths[0].name}, which a limited process read")


def check_suffix(job: Job, file: Path) -> None:
    """Check that a file of weights is safetensors; raises SpecError if not."""
    if file.suffix != SUFFIX:
        converted = file.with_suffix(SUFFIX)
        action = f"`drivetrain fetch {job.document.name}` converts a pickle to {converted}; name that file"
        raise job.spec_error(("model", "weights"), f"{file} is not a {SUFFIX} file", "weights without pickle", action)


def convert(file: Path, target: Path) -> None:
    """Write the tensors of a pickle of torch to a new file.

    Raises:
        DataError: if the file cannot be read, or contains more than tensors.
        StorageError: if the target cannot be written.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with blame_storage(target):
            temporary.touch()
            _run_child(file.resolve(), temporary.resolve())
            os.link(temporary, target)  # never over a file that exists
    finally:
        temporary.unlink(missing_ok=True)


def _run_child(file: Path, out: Path) -> None:
    """Run the child process, without the keys and tokens in the environment of this process."""
    command = [sys.executable, "-P", "-m", "drivetrain.pretrained.unpickle_process", str(file), str(out)]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CHILD_TIMEOUT_SECONDS, check=False
        )
        reason = child.stdout.strip() or f"ended its reader with {child.returncode}: {child.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired:
        reason = f"was read for more than {CHILD_TIMEOUT_SECONDS} seconds"
    else:
        if child.returncode == 0:
            return
    raise DataError(
        f"{file} {reason}",
        "a checkpoint of torch with tensors by name (a state_dict), about as large as these tensors",
        "on the machine where the file was created, save only the weights: torch.save(model.state_dict(), FILE)",
    )
