"""Folders that operating systems, network drives and cameras leave beside pictures; without torch.

They hold thumbnails and deleted files, so they are neither classes nor samples. Hidden folders, whose names begin with a
point, are passed over before.
"""

from __future__ import annotations

import re

_NAMES = {
    # Synology, QNAP
    *("@eadir", "@tmp", "@sharebin", "@recycle", "@recently-snapshot", "@__thumb", "#recycle", "#snapshot"),
    # macOS, Windows, Linux, Android
    *("__macosx", "network trash folder", "temporary items", "thevolumesettingsfolder"),
    *("$recycle.bin", "recycler", "recycled", "system volume information", "lost+found", "lost.dir"),
    # cameras and programs for photographs
    *("thmbnl", "picasaoriginals", "thumbnails", "_thumbnails", "_thumbs"),
    # Python
    *("__pycache__", "ipynb_checkpoints"),
}
_CHECKED_DISK = re.compile(r"found\.\d{3}")


def is_leftover(name: str) -> bool:
    """Whether a folder of this name holds nothing that somebody put there."""
    return name.casefold() in _NAMES or _CHECKED_DISK.fullmatch(name.casefold()) is not None
