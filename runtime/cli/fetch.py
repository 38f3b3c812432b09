"""`drivetrain fetch`: downloads what a job names on the Hugging Face hub, before its network is closed."""

from __future__ import annotations

import argparse
import os

from runtime.errors import DeviceError
from runtime.launch import run_in_image
from runtime.pretrained import hub_name
from runtime.system.units import format_bytes


def fetch(given: argparse.Namespace) -> int:
    """Fill the cache, and print what was fetched.

    Raises:
        SpecError: if the job is invalid, or its network cannot be downloaded or used.
        StorageError: if the cache cannot be written.
        DeviceError: if the volume of containers is asked for and no engine answers.
    """
    from runtime.job_spec import load as job_spec
    from runtime.pretrained import folder

    if given.container and "DRIVETRAIN_IMAGE" not in os.environ:
        return _contained(given)
    job = job_spec.load(given.job, given.set)
    name = hub_name.of_hub(job)
    if name is None:
        print(f"{given.job}: the job needs nothing from the Hugging Face hub")
        return 0
    found = folder.fetched(job, name, update=given.update)
    snapshot = found.snapshot
    size = f"{len(snapshot.files)} files, {snapshot.size / 1e6:,.1f} MB"
    if found.new:
        print(f"{name}: fetched {size}, each compared with its hash")
    else:
        print(
            f"{name}: everything is there, {size}; {found.note or 'each was compared with its hash when it was fetched'}"
        )
    for file in sorted(snapshot.files, key=lambda file: file.name):
        made = f", made of {snapshot.converted}" if snapshot.converted and file.name == "model.safetensors" else ""
        print(f"  {file.name}  {format_bytes(file.size)}{made}")
    print(f"revision {found.revision}: commit {snapshot.commit}")
    print(f"in {snapshot.folder}")
    return 0


def _contained(given: argparse.Namespace) -> int:
    from runtime.launch import docker_engine

    client = docker_engine.connect()
    if isinstance(client, docker_engine.EngineMissing):
        raise DeviceError(
            f"--container: no Docker engine answers: {client.why}",
            "an engine, or the cache of this user",
            f"{client.cure}, or leave out --container",
        )
    assignments = [word for assignment in given.set for word in ("--set", assignment)]
    update = ["--update"] if given.update else []
    return run_in_image.run(given, [given.command, str(given.job), *assignments, *update])
