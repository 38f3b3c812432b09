"""Frozen weights in checkpoints: written once, and a hard link to the same file in every later checkpoint.

Every checkpoint stays complete: it can be verified, copied and removed on its own, and the file system frees the file
with its last link. Where there are no hard links it is written each time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from drivetrain.models import safetensors_file
from drivetrain.models.safetensors_file import Tensors
from drivetrain.system.files import sha256, sync_folder

STEM = "frozen"
FILE = f"{STEM}.safetensors"
MODEL = "model"


def split(tensors: Mapping[str, Tensors], frozen: Collection[str]) -> dict[str, Tensors]:
    """The tensors by file, with those of the model that are frozen in a file of their own."""
    model = tensors[MODEL]
    stem = {name: value for name, value in model.items() if name in frozen}
    if not stem or len(stem) == len(model):
        return dict(tensors)
    return {**tensors, MODEL: {name: value for name, value in model.items() if name not in stem}, STEM: stem}


def join(tensors: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """The reverse of `split`."""
    frozen = tensors.pop(STEM, {})
    return {**tensors, MODEL: {**tensors[MODEL], **frozen}}


def put(folder: Path, path: Path, tensors: Tensors) -> None:
    """Create the file of a new checkpoint: a link to an identical one of `folder`, or written.

    The bytes of both are compared by their SHA-256, so a file that was damaged since is not linked.

    Raises:
        OSError: if it cannot be written.
    """
    digest = hashlib.sha256()
    size = 0
    for piece in safetensors_file.encode(tensors):
        digest.update(piece)
        size += len(piece)
    for earlier in folder.glob(f"*/{FILE}"):
        if _is_same(earlier, size, digest.hexdigest()):
            try:
                os.link(earlier, path)
                sync_folder(path.parent)
                return
            except OSError:  # no hard links here, or one too many
                path.unlink(missing_ok=True)
    safetensors_file.write(path, tensors)


def _is_same(path: Path, size: int, digest: str) -> bool:
    try:
        return not path.is_symlink() and path.stat().st_size == size and sha256(path) == digest
    except OSError:
        return False
