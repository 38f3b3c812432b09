"""Whether the stores that a job names can be used: its data listed and read, the place of its copies written."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from drivetrain.errors import DrivetrainError
from drivetrain.job import Job, dot_key, remote_data
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job_spec import located_data
from drivetrain.storage import store_variables, stored_files
from drivetrain.storage.object_store import ObjectStore, Patience, check_writable
from drivetrain.storage.remote_address import RemoteAddress, parse
from drivetrain.system.units import format_bytes

PATIENCE = Patience(retries=10.0, silence=10.0, connect=5.0)
"""Somebody waits for the answer."""


def check(job: Job, say: Callable[[str], None]) -> list[DrivetrainError]:
    """Use every remote address of a job once; returns what is wrong, in the order of the keys.

    Args:
        say: is told one line for each address that can be used.
    """
    wrong = list[DrivetrainError]()
    uses: list[tuple[tuple[str, ...], str, Callable[[RemoteAddress, str], str]]] = [
        (key, text, partial(_check_files, located_data.needed_files(job, key)))
        for key, text in remote_data.list_remote_paths(job)
    ]
    if job.checkpoint.copy_to:
        uses.append((("checkpoint", "copy_to"), job.checkpoint.copy_to, _check_copies))
    for key, text, use in uses:
        address = parse(text)
        try:
            usage = use(address, dot_key(key))
        except DrivetrainError as error:
            wrong.append(located_data.add_location(job, key, error))
        else:
            variables = store_variables.read_known(address.scheme, os.environ)
            access = f"set here: {', '.join(variables)}" if variables else "nothing set: by the role of this machine"
            say(f"{dot_key(key)}: {address}: {usage} ({access})")
    hub = [(key, text) for key, text in job.data_paths() if is_on_hub(text)]
    for key, text in hub:
        say(f"{dot_key(key)}: {text}: not asked here; `drivetrain fetch {job.document.name}` asks the hub")
    if not uses and not hub:
        say("remote: the job names no object store")
    return wrong


def _check_files(selects: Callable[[str], bool], address: RemoteAddress, key: str) -> str:
    store = ObjectStore(address.parent, PATIENCE)
    files = stored_files.list_files(store, address, selects)
    store.get_range(files[0].name, 0, min(files[0].bytes, 1))
    size = format_bytes(sum(file.bytes for file in files))
    return f"{len(files):,} file{'s' * (len(files) != 1)}, {size}, found and read"


def _check_copies(address: RemoteAddress, key: str) -> str:
    check_writable(ObjectStore(address, PATIENCE))
    return "listed, written, read and removed"
