"""Which files code of the user opens to read while a network is built and called for the first time."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator

_noting: list[tuple[list[str], type | None, int]] = []
"""The lists that are being filled, each with the class of which a method must be running, and its thread."""


@contextlib.contextmanager
def note_opened(within: type | None = None) -> Iterator[list[str]]:
    """The paths that are opened meanwhile, as they are given; with a class, only those opened below a method of it."""
    _install()
    paths: list[str] = []
    entry = (paths, within, threading.get_ident())
    _noting.append(entry)
    try:
        yield paths
    finally:
        _noting.remove(entry)


@functools.cache
def _install() -> None:
    sys.addaudithook(_hear)  # it cannot be removed


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if not _noting or event != "open":
        return
    path, flags = arguments[0], arguments[2]
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if isinstance(path, str | bytes) and not writes:
        for paths, within, thread in _noting:
            if thread == threading.get_ident() and (within is None or _is_running(within)):
                paths.append(os.fsdecode(path))


def _is_running(kind: type) -> bool:
    frame = sys._getframe(2)
    while frame and not isinstance(frame.f_locals.get("self"), kind):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
