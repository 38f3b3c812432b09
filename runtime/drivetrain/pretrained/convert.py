"""Converts a pickle checkpoint to safetensors without executing its content.

A child process (`unpickle_process`), which has no network and cannot start programs, reads the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.errors import DataError
from drivetrain.system.files import storage_error

WEIGHTS_NAME = "model.safetensors"
"""The file name that libraries look for in a folder."""
CHILD_TIMEOUT_SECONDS = 900
"""Time after which the child process is killed."""


@dataclass(frozen=True)
class Converted:
    """The safetensors file that was written."""

    path: Path
    tensors: int
    """Number of tensors."""
    size: int
    """Size in bytes."""
    left_out: tuple[str, ...]
    """Names of the other entries of the pickle, which are not part of the network."""
    shut_off: str
    """For the user: how the child process was isolated from the network."""

    def lines(self) -> list[str]:
        """Lines for the user."""
        lines = [
            f"{self.path}: {self.tensors:,} tensors, {self.size / 1e6:,.1f} MB",
            f"read in a separate process: {self.shut_off}",
        ]
        if self.left_out:
            lines.append(f"skipped, not part of the network: {', '.join(self.left_out)}")
        if not (self.path.parent / "config.json").exists():
            lines.append(f"to train from {self.path.parent}, put the network's config.json and tokenizer next to it")
        return lines


def convert(file: Path) -> Converted:
    """Write model.safetensors beside a pickle checkpoint.

    Args:
        file: `pytorch_model.bin`, `best_model.bin`, a .pt, .pth or .ckpt file.

    Raises:
        DataError: if the file cannot be read, contains more than tensors, or model.safetensors exists already.
        StorageError: if the folder cannot be written.
    """
    target = file.with_name(WEIGHTS_NAME)
    if not file.is_file():
        raise DataError(
            f"{file} is not a file", "a checkpoint: pytorch_model.bin, best_model.bin, *.pt", "check the path"
        )
    if target.exists():
        raise DataError(f"{target} already exists", "a folder without this file", "move it away, then convert again")
    if not os.access(file.parent, os.W_OK):
        raise storage_error(target, PermissionError(13, "permission denied"))
    temporary = target.with_name(f".{WEIGHTS_NAME}.{os.getpid()}")
    try:
        report = _run_child(file, temporary)
        size = temporary.stat().st_size
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)
    return Converted(target, report["tensors"], size, tuple(report["left_out"]), report["shut_off"])


def _run_child(file: Path, out: Path) -> dict[str, Any]:
    """Run the child process, whose environment contains no keys and tokens; returns its report."""
    command = [
        *(sys.executable, "-P", "-m", "drivetrain.pretrained.unpickle_process"),
        *(str(file.resolve()), str(out.resolve())),
    ]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    try:
        child = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CHILD_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _failure_error(file, f"took more than {CHILD_TIMEOUT_SECONDS} seconds") from None
    lines = child.stdout.strip().splitlines()
    if child.returncode or not lines:
        end = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        raise _failure_error(file, f"ended with {end} under its limits: {child.stderr.strip()[-200:]}")
    report: dict[str, Any] = json.loads(lines[-1])
    if "error" in report:
        raise DataError(*report["error"])
    return report


def _failure_error(file: Path, how: str) -> DataError:
    return DataError(
        f"{file}: the process that read it {how}",
        "a checkpoint of tensors",
        "on the machine where the file was created, save only the weights: torch.save(model.state_dict(), FILE)",
    )
