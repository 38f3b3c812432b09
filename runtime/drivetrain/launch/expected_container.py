"""The container that a job will train in, as hardware facts, for a plan made where torch exists in the image only.

Everything is known without an engine: the limits from the compose files, the image's libraries from its Dockerfile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace

from drivetrain.hardware.detect import name_machine
from drivetrain.hardware.facts import Cpu, Hardware, Libraries, Storage, Torch
from drivetrain.hardware.image_selection import BUILDS, choose_image
from drivetrain.job import Job
from drivetrain.launch import compose_project, container_limits, image_contents
from drivetrain.system.installation import CHECKOUT
from drivetrain.system.units import parse_bytes


def expect_hardware(host: Hardware, job: Job) -> tuple[Hardware, str]:
    """Return the hardware that `train` would use for this job, and a line about it; the host and no line if that is
    here.

    Args:
        host: the machine of this process, with the GPUs that the job uses.
    """
    if not image_contents.torch_is_missing():
        return host, ""
    if shutil.which("docker") is None:
        remedy = "`train` installs it first" if CHECKOUT else "`train` needs it or a Docker engine"
        return host, f"torch is not installed here: {remedy}; this is the plan of this host, without a container"
    variant = choose_image(host).word or "cpu"
    how = "as `launch --device gpu` starts it; `--set limits.gpus=none` shows the plan of the CPU"
    line = "torch is not installed here: this is the plan for the container of the image " + variant
    return in_container(host, job, variant), f"{line}, {'in which `train` runs' if variant == 'cpu' else how}"


def in_container(host: Hardware, job: Job, variant: str) -> Hardware:
    """Return the hardware inside of a container of this image, started for this job on this host."""
    settings = _settings(host, job, variant)
    trainer = compose_project.read_trainer(settings)
    limits, shm = trainer["deploy"]["resources"]["limits"], trainer["shm_size"]
    if variant != "cpu":
        shm = compose_project.read_trainer(settings, compose_project.GPU_FILE)["shm_size"]
    cpu, memory = _cpu(host.cpu, float(limits["cpus"])), parse_bytes(limits["memory"])
    gpus = host.gpus if variant != "cpu" else ()
    build, architecture, cpu_torch = BUILDS.get(variant), host.cpu.architecture, BUILDS["ampere"].torch
    return replace(
        host,
        name=name_machine(cpu, "docker", gpus),
        place="docker",
        image=variant,
        cpu=cpu,
        memory=replace(host.memory, limit=memory, used=0, available=min(memory, host.memory.available), swap=False),
        storage=_storage(host.storage, parse_bytes(shm)),
        gpus=gpus,
        torch=Torch(version=build.torch, cuda=build.cuda) if build else Torch(version=f"{cpu_torch}+cpu", cuda=None),
        compiler="/usr/bin/g++",
        # The Dockerfile installs these for preloading.
        libraries=Libraries(
            iomp5="/usr/local/lib/libiomp5.so" if variant == "cpu" and architecture == "x86_64" else None,
            tcmalloc=f"/usr/lib/{architecture}-linux-gnu/libtcmalloc_minimal.so.4",
        ),
        system="Linux",
    )


def _settings(host: Hardware, job: Job, variant: str) -> dict[str, str]:
    """Return the variables of the compose files: from .env, from the environment, and of this job."""
    machine = {"NCPU": host.cpu.host, "MemTotal": host.memory.host}
    with contextlib.redirect_stdout(None):  # the plan's notes name limits that exceed the machine
        variables = container_limits.variables(machine, job, gpu=variant != "cpu")
    # The compose files of the GPUs have variables of their own for the same limits.
    variables |= {name.replace("_GPU", ""): value for name, value in variables.items()}
    stored = container_limits.read_env_file()
    if stored.get("DRIVETRAIN_CPUS") == "0":  # the engine cannot limit CPUs
        variables["DRIVETRAIN_CPUS"] = "0"
    return {**stored, **os.environ, **variables}


def _cpu(cpu: Cpu, quota: float) -> Cpu:
    """Return the processor under a quota of CPUs; 0 is none."""
    budget = min(cpu.host, int(quota)) if quota else cpu.host
    return replace(
        cpu, affinity=cpu.host, cpuset=cpu.host, quota=quota or None, cores=max(cpu.cores, 1), budget=max(budget, 1)
    )


def _storage(storage: Storage, shm: int) -> Storage:
    """Return the folders of a container; the cache gets the free space of the runs, as the engine's is unknown."""
    return replace(
        storage,
        shm=shm,
        shm_exec=False,
        tmp_exec=True,
        cache="/cache/compile",
        cache_exec=True,
        cache_writable=True,
        cache_room=storage.runs_free,
    )
