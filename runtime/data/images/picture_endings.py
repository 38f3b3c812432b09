"""Endings of picture files; without Pillow."""

from __future__ import annotations

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jfif", ".jpe", ".avif")
OTHER_PICTURES = (
    *(".heic", ".heif", ".jxl", ".jp2", ".j2k", ".jpx", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".psd", ".exr", ".hdr"),
    *(".dcm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"),
)
"""Endings of pictures that are not read: a class must not lose them without anybody knowing."""
