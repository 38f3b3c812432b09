"""What names of files and folders say: which are pictures, and which folders no one put pictures in; without torch.

Operating systems, network drives and cameras leave folders beside pictures. They hold thumbnails and deleted files, so they
are neither classes nor samples. Hidden folders, whose names begin with a point, are passed over before.
"""

from __future__ import annotations

import re

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jfif", ".jpe", ".avif")
OTHER_PICTURES = (
    *(".heic", ".heif", ".jxl", ".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".psd", ".exr", ".hdr"),
    *(".dcm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"),
)
"""Endings of pictures that are not read: a class must not lose them without anybody knowing."""
_LEFTOVER_NAMES = {
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
    """Return whether a folder of this name was left by a program, not made for pictures."""
    return name.casefold() in _LEFTOVER_NAMES or _CHECKED_DISK.fullmatch(name.casefold()) is not None
