"""Whether an address can be written as the copies of runs are: with conditions, read again, and removed."""

from __future__ import annotations

import contextlib
import uuid

from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.store_errors import RemoteError, Trouble

NAME = ".drivetrain-probe-"
"""Begins the name of the object that is written and removed; it is no part of a run."""


def check_writable(store: ObjectStore) -> None:
    """List, and write, read and remove a small object.

    Raises:
        RemoteError: with what the store refuses; also if it takes conditions without keeping them, since two machines
            would then write one run.
    """
    store.folders()
    name = f"{NAME}{uuid.uuid4().hex}"
    try:
        _check_conditions(store, name)
    except RemoteError:
        with contextlib.suppress(RemoteError):
            store.delete([name])
        raise
    store.delete([name])


def _check_conditions(store: ObjectStore, name: str) -> None:
    try:
        store.create(name, b"first")
        if store.create(name, b"second") is not None:
            raise _unconditional(store, "it wrote over an object that must not exist")
        old = store.head(name).revision
        # An answer that was lost is None, too; what was written tells.
        if store.replace(name, b"third", old) is None and store.get(name) != b"third":
            raise _unconditional(store, "it refused to write over an object that had not changed")
        if store.replace(name, b"fourth", old) is not None:
            raise _unconditional(store, "it wrote over an object that had changed")
    except RemoteError as error:
        if error.trouble is Trouble.REFUSED and "501" in error.given:
            raise _unconditional(store, "it answered 501") from None
        raise
    if store.get(name) != b"third":
        raise _unconditional(store, "what is read is not what was written last")


def _unconditional(store: ObjectStore, observation: str) -> RemoteError:
    return RemoteError(
        Trouble.REFUSED,
        f"{store.address}: the store has no conditional writes: {observation}",
        "a store in which one of two writers is refused (If-None-Match and If-Match): those of Amazon, Google and Azure",
        "update the store, or name another one",
    )
