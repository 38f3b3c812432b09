"""Writes the frozen weights of a run once, and links to that file from every later checkpoint.

Every checkpoint stays complete: it can be verified, copied and removed on its own, and the file system frees the file
with its last link. Where the file system has no hard links, the file is written each time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from drivetrain.models import safetensors_file
from drivetrain.models.safetensors_file import Tensors
from drivetrain.system.files import hash_file, sync_folder

FROZEN_STEM = "frozen"
FROZEN_FILE = f"{FROZEN_STEM}.safetensors"
MODEL_STEM = "model"


def split_frozen(tensors: Mapping[str, Tensors], frozen: Collection[str]) -> dict[str, Tensors]:
    """The tensors by file, with the frozen tensors of the model moved to a file of their own."""
    model = tensors[MODEL_STEM]
    frozen_tensors = {name: value for name, value in model.items() if name in frozen}
    if not frozen_tensors or len(frozen_tensors) == len(model):
        return dict(tensors)
    trained_tensors = {name: value for name, value in model.items() if name not in frozen_tensors}
    return {**tensors, MODEL_STEM: trained_tensors, FROZEN_STEM: frozen_tensors}


def join_frozen(tensors: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Undo `split_frozen`: the frozen tensors are those of the model again."""
    frozen = tensors.pop(FROZEN_STEM, {})
    return {**tensors, MODEL_STEM: {**tensors[MODEL_STEM], **frozen}}


def link_or_write(folder: Path, path: Path, tensors: Tensors) -> None:
    """Create the file `path` as a link to an identical one in a checkpoint of `folder`; write it if there is none.

    The SHA-256 of both is compared, so a file that was damaged since is not linked.

    Raises:
        OSError: if it cannot be written.
    """
    digest = hashlib.sha256()
    size = 0
    for piece in safetensors_file.encode(tensors):
        digest.update(piece)
        size += len(piece)
    for earlier in folder.glob(f"*/{FROZEN_FILE}"):
        if _is_same_file(earlier, size, digest.hexdigest()):
            try:
                os.link(earlier, path)
                sync_folder(path.parent)
                return
            except OSError:  # no hard links on this file system, or the limit of one file
                path.unlink(missing_ok=True)
    safetensors_file.write(path, tensors)


def _is_same_file(path: Path, size: int, digest: str) -> bool:
    try:
        return not path.is_symlink() and path.stat().st_size == size and hash_file(path) == digest
    except OSError:
        return False
