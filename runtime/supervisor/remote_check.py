"""Whether the stores that a job names can be used: its data listed and read, the place of its copies written."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from runtime.data.streaming import accepted
from runtime.data.streaming.remote_store import RemoteStore
from runtime.data.streaming.shard import Accepted
from runtime.errors import DrivetrainError
from runtime.job import Job, dotted, remote_data
from runtime.job.hub_address import is_on_hub
from runtime.job_spec import stored_data
from runtime.storage import store_variables, stored_files
from runtime.storage.object_store import ObjectStore, Patience
from runtime.storage.remote_address import RemoteAddress, parse
from runtime.storage.write_probe import check_writable
from runtime.system.units import format_bytes

PATIENCE = Patience(retries=10.0, silence=10.0, connect=5.0)
"""Somebody waits for the answer."""


def check(job: Job, say: Callable[[str], None]) -> list[DrivetrainError]:
    """Use every remote address of a job once; returns what is wrong, in the order of the keys.

    Args:
        job: the checked spec.
        say: is told one line for each address that can be used.
    """
    wrong = list[DrivetrainError]()
    uses: list[tuple[tuple[str, ...], str, Callable[[RemoteAddress, str], str]]] = [
        (key, text, _look(job, key)) for key, text in remote_data.remote_paths(job)
    ]
    if job.checkpoint.copy_to:
        uses.append((("checkpoint", "copy_to"), job.checkpoint.copy_to, _write))
    for key, text, use in uses:
        address = parse(text)
        try:
            found = use(address, dotted(key))
        except DrivetrainError as error:
            wrong.append(stored_data.placed(job, key, error))
        else:
            say(f"{dotted(key)}: {address}: {found} ({_access(address)})")
    hub = [(key, text) for key, text in job.data_paths() if is_on_hub(text)]
    for key, text in hub:
        say(f"{dotted(key)}: {text}: not asked here; `drivetrain fetch {job.document.name}` asks the hub")
    if not uses and not hub:
        say("remote: the job names no object store")
    return wrong


def _look(job: Job, key: tuple[str, ...]) -> Callable[[RemoteAddress, str], str]:
    """How what a job reads is tried."""
    if job.streams(key):
        return partial(_read, accepted.of_task(job))
    return partial(_find, stored_data.wanted(job, key))


def _read(kinds: Accepted, address: RemoteAddress, key: str) -> str:
    store = RemoteStore(address, key, kinds, patience=PATIENCE)
    shards = store.shards()
    store.check_read(shards[0])
    size = format_bytes(sum(each.size for each in shards))
    return f"{len(shards):,} shard{'s' * (len(shards) != 1)}, {size}, listed and read"


def _find(wanted: Callable[[str], bool], address: RemoteAddress, key: str) -> str:
    store = ObjectStore(address.parent, PATIENCE)
    files = stored_files.listed(store, address, wanted)
    store.get_range(files[0].name, 0, min(files[0].bytes, 1))
    size = format_bytes(sum(each.bytes for each in files))
    return f"{len(files):,} file{'s' * (len(files) != 1)}, {size}, found and read"


def _write(address: RemoteAddress, key: str) -> str:
    check_writable(ObjectStore(address, PATIENCE))
    return "listed, written, read and removed"


def _access(address: RemoteAddress) -> str:
    """From where credentials and endpoint come."""
    given = store_variables.known(address.scheme, os.environ)
    return f"set here: {', '.join(given)}" if given else "nothing set: by the role of this machine"
