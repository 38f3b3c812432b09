"""Which tests run side by side: files do, but the tests of a file share what is costly to make, and images the engine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import object_store, recorded_machine, tiers
from tests.paths import ROOT, TESTS

# Tests compute on the CPU, on a machine with a GPU too, where they would find other settings; `tests/gpu` uses the GPU.
# A worker of xdist starts with the environment that the first process has changed.
SHOWN = "DRIVETRAIN_TESTS_SHOWN_GPUS"
os.environ.setdefault(SHOWN, os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""
if "PYTEST_XDIST_WORKER" in os.environ:  # two workers with two threads each would wait for each other on two CPUs
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Plans of tests do not depend on whether this CPU has bf16 instructions, and how fast they are at the moment.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI"
# Nor on what other programs do meanwhile.
os.environ["DRIVETRAIN_NEIGHBORS"] = "off"
# Hundreds of tests train; those of the baselines switch them on.
os.environ["DRIVETRAIN_BASELINES"] = "off"

# In the background of a shell, or under nohup, runs would ignore what the tests send them.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    """A command that ran in this process ignores signals at its end, and what the next test starts would inherit that."""
    from drivetrain.system.signals import (
        HANDLED_SIGNALS,  # not before the handlers above are set: it notes what is ignored
    )

    before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def time_limits_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that passed in an earlier test of this process, such as one of a compiler, does not count."""
    from drivetrain.system import timeout

    monkeypatch.setattr(timeout, "_broken", [])


@pytest.fixture(scope="session", autouse=True)
def state_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept for the user outside of run folders goes to a folder of the tests, also from child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def environment_of_the_test() -> Iterator[None]:
    """Commands called in this process set variables for theirs, such as the number of threads; the next test has its own."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def machine_of_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A quick test sees a recorded machine, so that its result is the same on every host."""
    with (
        contextlib.nullcontext()
        if recorded_machine.sees_host(request.node)
        else recorded_machine.replace_host(request.node)
    ):
        yield


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The file of a small image job, in the folder of its data."""
    from tests.supervisor import tiny_run  # not before CUDA_VISIBLE_DEVICES is set: it imports torch

    return tiny_run.write_job(tmp_path)


@pytest.fixture(scope="session")
def moto_server() -> Iterator[str]:
    """The address of an S3 server, which takes seconds to start."""
    with object_store.moto() as address:
        yield address


@pytest.fixture(scope="module")
def s3(moto_server: str) -> str:
    """The address of an S3 server with an empty bucket."""
    object_store.empty_bucket(moto_server)
    return moto_server


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name by its argument what is no short text: a name must be the same in every process and every checkout.

    Compressed bytes hold the time of day, and two workers of xdist that collect different names run nothing.
    """
    if isinstance(val, bytes) or (isinstance(val, str) and (len(val) > 200 or str(ROOT) in val)):
        return argname
    return None


class Children:
    """The processes that this one has started, listed again only after it started another: /proc is read for a list."""

    def __init__(self) -> None:
        self.starts, self.listed_after, self.pids = 0, -1, frozenset[int]()
        sys.addaudithook(self.count_start)

    def count_start(self, event: str, _: object) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self.starts += 1

    def list_pids(self) -> frozenset[int]:
        if self.listed_after != self.starts:
            self.listed_after = self.starts
            self.pids = frozenset(child.pid for child in psutil.Process().children())
        return self.pids


children = Children()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End the trainings that a failed test leaves behind: they would run on for minutes beside the next tests."""
    before = children.list_pids()
    try:
        yield
    except BaseException:
        for pid in children.list_pids() - before:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        raise


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow tests, and group tests for `--dist loadgroup`; the group that takes longest begins."""
    for item in items:
        if tiers.is_slow(item.path.relative_to(TESTS)):
            item.add_marker(pytest.mark.slow)
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: _group(item) != "docker")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if xdist would split the groups, as it does with a pytest it does not know: image tests would meet."""
    if not hasattr(session.config, "workerinput") or not session.config.getvalue("loadgroup"):
        return
    if session.items and not session.items[0].nodeid.endswith(f"@{_group(session.items[0])}"):
        raise pytest.UsageError(
            "this pytest and this xdist do not keep the tests of a file together; see pyproject.toml"
        )


def _group(item: pytest.Item) -> str:
    path = item.path.relative_to(TESTS)
    return "docker" if path.parts[0] == "docker" else str(path.with_suffix(""))
