"""Slurm: a batch script that sbatch takes, trains on all nodes of its allocation and queues itself again if it should."""

from __future__ import annotations

import base64
import math
import shlex
import textwrap
from collections.abc import Iterator

from drivetrain.errors import SpecError
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.launch.clusters import preflight
from drivetrain.launch.clusters.cluster_job import ClusterFile, ClusterJob
from drivetrain.launch.clusters.site import SlurmSite
from drivetrain.system.console import say_aside
from drivetrain.system.units import parse_bytes

SITE_OPTIONS = {
    "cpus": ("cpus-per-task", "exclusive", "cpus-per-gpu"),
    "memory": ("mem", "mem-per-cpu", "mem-per-gpu", "exclusive"),
    "gpus": ("gres", "gpus", "gpus-per-node", "gpus-per-task"),
}
"""Options of sbatch by which a site sets the CPUs, memory or GPUs itself; ours is then left out."""
MAX_SCRIPT_FILE_BYTES = 2 << 20
"""Bytes of files in a batch script: Slurm takes scripts of 4 MB."""


def prepare(work: ClusterJob, settings: SlurmSite, site: str) -> ClusterFile:
    """The batch script; raises SpecError if the job cannot train there."""
    if settings.time and parse_duration(settings.grace) >= parse_duration(settings.time):
        fault = f"{site}: slurm.grace is {settings.grace}, and slurm.time is {settings.time}"
        raise SpecError(fault, "a grace period shorter than the time limit", "raise time, or lower grace")
    # The image can be in an option of srun, or a word of the command that starts the container.
    for word in (*settings.srun, *(settings.command or ())):
        _check_image(word, site)
    preflight.check_shared_folders(work, settings.shared, site, own_python=settings.command is None)
    notes = [preflight.check_grace(work, settings.grace, f"{site}: slurm"), *_note_environment(work, settings)]
    log = f"{work.job.name}-%j.log"
    values = _list_values(work, settings) | {"log": str(work.folder / log)}
    return ClusterFile("slurm.sbatch", ".sbatch", values, notes, ["sbatch"], f"squeue --me, and {log}")


def _check_image(word: str, site: str) -> None:
    """Refuse an image that a registry can exchange while the job waits."""
    is_option = word.startswith("--container-image=")
    image = word.partition("=")[2] if is_option else word
    is_remote = "://" in image or (is_option and not image.startswith(("/", ".")))
    if is_remote and "@sha256:" not in image:
        raise SpecError(
            f"{site}: slurm: the image {image} is named by a tag",
            "an image file, or an image by its digest: NAME@sha256:...",
            "every attempt then trains with the same code; `docker images --digests` shows digests",
        )


def _note_environment(work: ClusterJob, settings: SlurmSite) -> Iterator[str]:
    """Yield lines about the variables of the job's stores, which sbatch hands on from its caller, and missing limits."""
    variables = preflight.list_store_variables(work)
    exported = str(settings.options.get("export", "ALL"))
    if variables and "ALL" in exported.split(","):
        yield f"submit it from where {', '.join(variables)} is set: sbatch hands it to the job"
    elif variables:
        yield f"slurm.options.export is {exported}: {', '.join(variables)} reaches the job only if it lists the names"
    for prefix, store in preflight.list_missing_credentials(work, variables):
        yield f"no {prefix} variable is set here: for {store} export it where the job is submitted, or the nodes need a role"
    for key in ("cpus", "memory"):
        if getattr(work.job.limits, key) is None and settings.sbatch_flags.keys().isdisjoint(SITE_OPTIONS[key]):
            yield f"limits.{key} is not in the job: each node gets the cluster's default"


def _list_values(work: ClusterJob, settings: SlurmSite) -> dict[str, object]:
    """The values of the template but the log."""
    limits, flags, is_range = work.job.limits, settings.sbatch_flags, work.least < work.nodes
    sizes = {
        "cpus": math.ceil(limits.cpus) if limits.cpus else None,
        "memory": f"{math.ceil(parse_bytes(limits.memory) / 2**20)}M" if limits.memory else None,
        "gpus": work.per_node if work.gpus else None,
    }
    return {
        **work.list_values(),
        "folder": str(work.folder),
        "nodes": f"{work.least}-{work.nodes}" if is_range else work.nodes,
        "tasks_per_node": None if is_range else 1,
        "grace_seconds": math.ceil(parse_duration(settings.grace)),
        "minutes": max(1, math.ceil(parse_duration(settings.time) / 60)) if settings.time else None,
        **{key: size if flags.keys().isdisjoint(SITE_OPTIONS[key]) else None for key, size in sizes.items()},
        "options": "\n".join(f"#SBATCH {shlex.quote(flag)}" for flag in flags.values()),
        "setup": "\n".join(settings.setup),
        "command": work.build_command(settings.command),
        "files": "\n".join(_write_carried_files(work)),
        "srun_options": settings.srun,
        "least": work.least,
    }


def _write_carried_files(work: ClusterJob) -> Iterator[str]:
    """Yield commands that write the job file and the user's code as they are now: they may be edited while the job waits."""
    files = SpecSource(work.spec, content=work.content.encode()).read_files(work.job)
    if sum(map(len, files.values())) > MAX_SCRIPT_FILE_BYTES:
        too_large = sorted(name for name in files if not name.endswith((".py", ".yaml")))
        say_aside(
            f"{len(too_large)} files that arguments name are too large for a batch script, so they are read when "
            f"the run starts, as they are then: {', '.join(too_large[:3])}"
        )
        files = {name: content for name, content in files.items() if name not in too_large}
    for name, content in files.items():
        # Encoded, since a byte more or less would be another file.
        text = "".join(f"\n{line}" for line in textwrap.wrap(base64.b64encode(content).decode(), 120))
        path = f'"$copy"/{shlex.quote(name)}'
        yield f'mkdir -p "$(dirname {path})" && base64 -d > {path} << END{text}\nEND'
