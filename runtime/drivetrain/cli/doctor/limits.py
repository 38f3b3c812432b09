"""Checks the limits of this container against what libraries assume, too many threads, TensorBoard's port, and the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from drivetrain.cli.doctor.finding import Finding, fail, ok, warn
from drivetrain.cli.doctor.snapshot import Snapshot
from drivetrain.hardware.facts import EMULATION
from drivetrain.system.units import format_bytes

GIB = 2**30
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Check CPU, memory and threads."""
    yield _check_cpu(snapshot)
    yield _check_memory(snapshot)
    yield from _check_oversubscription(snapshot)
    yield from _check_libraries(snapshot)


def _check_cpu(snapshot: Snapshot) -> Finding:
    cpu = snapshot.hardware.cpu
    if cpu.emulated:
        return warn(
            "CPU", EMULATION, "build or pull the image of this machine's own processor; unset DOCKER_DEFAULT_PLATFORM"
        )
    if cpu.quota is not None and cpu.quota < 1:
        return warn(
            "CPU",
            f"the quota is {cpu.quota:g} of a CPU: even a single thread is throttled",
            "raise limits.cpus in the job or DRIVETRAIN_CPUS in .env to 1 or more",
        )
    believed = snapshot.loaded.get("cpus")
    if believed and cpu.budget < believed:
        return ok(
            "CPU",
            f"{cpu.budget} available; libraries would assume {believed}, so drivetrain sets the number of threads",
        )
    return ok("CPU", f"{cpu.budget} of {cpu.host} available")


def _check_memory(snapshot: Snapshot) -> Finding:
    memory = snapshot.hardware.memory
    bound = f"limit {format_bytes(memory.limit)}" if memory.limit else "no limit"
    text = f"{format_bytes(memory.available)} free ({bound}, host {format_bytes(memory.host)})"
    if memory.available < GIB // 2:
        return fail(
            "memory",
            f"{text}: too little, torch alone needs half a GiB",
            "close other programs, or raise limits.memory in the job or DRIVETRAIN_MEMORY in .env",
        )
    if memory.available < GIB:
        return warn(
            "memory",
            f"{text}: enough only for small jobs",
            "raise limits.memory in the job or DRIVETRAIN_MEMORY in .env",
        )
    return ok("memory", text)


def _check_oversubscription(snapshot: Snapshot) -> Iterator[Finding]:
    cpu = snapshot.hardware.cpu
    for name in POOLS:
        value = snapshot.environ.get(name, "").split(",")[0]
        if value.isdigit() and int(value) > cpu.budget:
            yield warn(
                name,
                f"{value} threads on {cpu.budget} {'CPU' if cpu.budget == 1 else 'CPUs'}: they slow each other "
                "down. drivetrain sets its own value, but other programs use this one",
                f"unset {name}",
            )


def _check_libraries(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the libraries that torch has actually loaded."""
    pools = snapshot.loaded.get("pools", [])
    if not snapshot.loaded:
        return
    openmp = sorted({pool["prefix"] for pool in pools if pool["user_api"] == "openmp"})
    names = [
        f"{pool['prefix']} {pool['version'] or ''}".strip() + f" ({pool['num_threads']} threads)" for pool in pools
    ]
    if len(openmp) > 1:
        yield warn(
            "OpenMP",
            f"two runtimes in one process ({', '.join(openmp)}): they start twice as many threads",
            "load only one: check LD_PRELOAD and installed packages that bundle their own OpenMP runtime",
        )
    else:
        yield ok("libraries", f"{', '.join(names) or 'none'}; {snapshot.loaded.get('instructions')}")


TENSORBOARD_PORT = 6006
DAY_SECONDS = 86400.0


def check_port_and_clock(snapshot: Snapshot) -> Iterator[Finding]:
    """Check port and clock."""
    yield from _check_port(snapshot)
    yield _check_clock(snapshot)


def _check_port(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.hardware.place != "host":
        return
    ours = snapshot.run(["docker", "ps", "-q", "--filter", "label=com.docker.compose.service=tensorboard"])
    if not snapshot.port_taken(TENSORBOARD_PORT):
        yield ok(f"port {TENSORBOARD_PORT}", "free for TensorBoard")
    elif ours:
        yield ok(f"port {TENSORBOARD_PORT}", "used by the TensorBoard of this project")
    else:
        yield warn(
            f"port {TENSORBOARD_PORT}",
            "used by another program: TensorBoard cannot start",
            f"ss -ltnp 'sport = :{TENSORBOARD_PORT}' shows which; end it, or set DRIVETRAIN_TENSORBOARD_PORT",
        )


def _check_clock(snapshot: Snapshot) -> Finding:
    """Check the clock: behind our own files it causes wrong logs, wrong image ages and invalid certificates."""
    newest = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    time_text = datetime.fromtimestamp(snapshot.now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if snapshot.now < newest - DAY_SECONDS:
        return warn(
            "clock",
            f"{time_text} is earlier than the date of these files: the clock is wrong, and certificates may be rejected",
            "sudo timedatectl set-ntp true",
        )
    return ok("clock", time_text)
