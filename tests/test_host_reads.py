"""No quick test reads the machine, its load, its user, its engine or its clock, which differ where somebody else runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import read_hardware
from tests import tiers
from tests.paths import MACHINES, TESTS

READS = {
    *("os.cpu_count", "os.process_cpu_count", "os.sched_getaffinity", "os.getloadavg", "os.uname", "os.getlogin"),
    *("multiprocessing.cpu_count", "platform.machine", "platform.processor", "platform.node", "platform.uname"),
    *("psutil.cpu_percent", "psutil.cpu_count", "psutil.virtual_memory", "psutil.getloadavg", "psutil.cpu_times"),
    *("getpass.getuser", "pwd.getpwuid", "socket.gethostname", "docker.from_env"),
    *("time.time", "time.localtime", "datetime.now", "datetime.today", "date.today", "datetime.utcnow"),
    *("torch.cuda.is_available", "torch.backends.cpu.get_cpu_capability"),
    *("resource.getrlimit", "shutil.disk_usage", "os.statvfs"),
}
"""Calls whose answer belongs to the host."""
FILES = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/sys/fs/cgroup", "/var/run/docker.sock")


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_excused(node: ast.AST) -> bool:
    """Whether a test is marked as one that reads the host, or is slow, or skips itself where a fact is missing."""
    return isinstance(node, ast.FunctionDef) and any(
        "mark.host" in text or "mark.slow" in text or "mark.nightly" in text
        for text in map(ast.unparse, node.decorator_list)
    )


def list_reads(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of what reads the host below a node."""
    if is_excused(node):
        return
    if isinstance(node, ast.Call):
        name = name_of(node.func)
        if any(name == read or name.endswith(f".{read}") for read in READS):
            yield node.lineno, name
        if (
            name.startswith("subprocess.")
            and node.args
            and ast.unparse(node.args[0]).startswith(("['docker'", "'docker"))
        ):
            yield node.lineno, "docker"
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(FILES):
        yield node.lineno, node.value
    for child in ast.iter_child_nodes(node):
        yield from list_reads(child)


def test_quick_tests_read_nothing_of_the_host() -> None:
    found = []
    for path in sorted({*TESTS.rglob("test_*.py")} - {Path(__file__)}):
        name = path.relative_to(TESTS)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_marked = any(
            isinstance(node, ast.Assign)
            and ast.unparse(node).startswith("pytestmark")
            and "mark.host" in ast.unparse(node)
            for node in tree.body
        )
        if not tiers.is_slow(name) and not is_marked:
            found += [f"{name}:{line}: {read}" for line, read in list_reads(tree)]
    assert not found, "take the fact from tests/machines, or give the code under test a clock; else pytest.mark.host"


@pytest.mark.parametrize(
    "code",
    [
        "def test_a() -> None:\n    assert os.cpu_count() == 2",
        "def test_a() -> None:\n    assert platform.machine() == 'x86_64'",
        "FLAGS = Path('/proc/cpuinfo').read_text()",
        "def test_a() -> None:\n    subprocess.run(['docker', 'ps'])",
        "def test_a() -> None:\n    assert age(now=datetime.datetime.now()) < 3",
    ],
)
def test_a_read_is_found(code: str) -> None:
    assert list(list_reads(ast.parse(code)))
    excused = code.replace("def test_a", "@pytest.mark.host\ndef test_a")
    assert "def" not in code or not list(list_reads(ast.parse(excused)))


@pytest.mark.machine("graviton4")
def test_detection_gives_the_recorded_machine() -> None:
    recorded, detected = read_hardware(MACHINES / "graviton4.json"), detect(TESTS)
    assert (detected.cpu, detected.memory, detected.gpus, detected.place) == (
        recorded.cpu,
        recorded.memory,
        (),
        recorded.place,
    )
