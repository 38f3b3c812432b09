"""Whole trainings with a copy in a store: lost with their disk, continued elsewhere; a store that is away at the end."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults import small_job
from tests.messages import get_message, says
from tests.object_store import KEY, SECRET, FaultyStore, moto
from tests.supervisor.remote_copy.fake_run import faulty_store, list_checkpoints, open_store

PATIENT = 240.0


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto() as address:
        yield address


@pytest.fixture
def proxy(server: str) -> Iterator[FaultyStore]:
    with faulty_store(server) as store:
        yield store


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbed, without a copy."""
    job = small_job.write_job(tmp_path_factory.mktemp("peaceful"))
    small_job.finish(job)
    return small_job.newest_run(job)


def copy_options(prefix: str) -> tuple[str, str]:
    return "--set", f"checkpoint.copy_to=s3://bucket/{prefix}"


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def kill_all(process: psutil.Popen) -> None:
    """As a machine that is lost: nothing of it goes on."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.suspend()
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def steps(prefix: str) -> list[int]:
    return [
        int(name.removeprefix("step-")) for name in list_checkpoints(open_store(prefix)) if name.startswith("step-")
    ]


@pytest.mark.nightly  # the image test of a lost container runs with every change
def test_lost_with_its_disk_it_goes_on_elsewhere_with_the_same_bits(
    proxy: FaultyStore, undisturbed_run: Path, tmp_path: Path
) -> None:
    """Killed on the first machine, stopped on the second, finished on the third; each begins with an empty disk."""
    first_job, second_job, third_job = (small_job.write_job(tmp_path / name) for name in ("one", "two", "three"))
    process = small_job.start(first_job, *copy_options("lost"))
    wait(lambda: any(step > 14 for step in steps("lost/small-001")))
    kill_all(process)  # type: ignore[arg-type]
    shutil.rmtree(first_job.parent / "runs")
    process = small_job.start(second_job, *copy_options("lost"))
    before = max(steps("lost/small-001"))
    wait(lambda: any(step > before for step in steps("lost/small-001")))
    process.send_signal(signal.SIGTERM)
    log = second_job.parent / "job.log"
    assert process.wait(PATIENT) == 75, log.read_text()
    last = small_job.last_checkpoint(small_job.newest_run(second_job)).name
    assert last in list_checkpoints(open_store("lost/small-001")), "what was saved when it was stopped is there"
    output = small_job.finish(third_job, *copy_options("lost"))
    assert f"{last}, " in output
    assert "downloaded to" in output
    assert small_job.differences(undisturbed_run, small_job.newest_run(third_job)) == []
    state = open_store("lost/small-001").get("state.json")
    assert b'"done"' in state
    assert (
        open_store("lost/small-001").get("model/model.safetensors")
        == (small_job.newest_run(third_job) / "model" / "model.safetensors").read_bytes()
    )
    for folder in (second_job.parent, third_job.parent):
        for path in folder.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert SECRET.encode() not in content, path
            assert KEY.encode() not in content, path
    assert [
        stored_object
        for stored_object in open_store("lost").objects()
        if SECRET.encode() in open_store("lost").get(stored_object.name)
    ] == []
    # The next one begins with the next number, though this disk has none.
    fourth_job = small_job.write_job(tmp_path / "four", epochs="1")
    small_job.finish(fourth_job, *copy_options("lost"))
    assert small_job.newest_run(fourth_job).name == "small-002"


def test_a_store_that_is_away_for_a_while_costs_nothing(
    proxy: FaultyStore, undisturbed_run: Path, tmp_path: Path
) -> None:
    job = small_job.write_job(tmp_path)
    process = small_job.start(job, *copy_options("while"))
    wait(lambda: bool(steps("while/small-001")))
    proxy.drops_connections = True
    wait(lambda: "training goes on, and what is missing is sent later" in (tmp_path / "job.log").read_text())
    proxy.drops_connections = False
    assert process.wait(PATIENT) == 0, (tmp_path / "job.log").read_text()
    assert "answers again" in (tmp_path / "job.log").read_text()
    assert small_job.differences(undisturbed_run, small_job.newest_run(job)) == []
    assert small_job.last_checkpoint(small_job.newest_run(job)).name in list_checkpoints(open_store("while/small-001"))


@pytest.mark.nightly
def test_a_store_that_is_away_at_the_end_is_told_and_sent_later(proxy: FaultyStore, tmp_path: Path) -> None:
    job = small_job.write_job(tmp_path)
    process = small_job.start(job, *copy_options("end"))
    wait(lambda: bool(steps("end/small-001")))
    proxy.drops_connections = True
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENT) == 7, (tmp_path / "job.log").read_text()
    log = (tmp_path / "job.log").read_text()
    last = small_job.last_checkpoint(small_job.newest_run(job)).name
    assert f"s3://bucket/end/small-001 lacks {last}" in log
    assert says(log, "last-checkpoint-complete")
    output = small_job.finish(job, *copy_options("end"), expected=7)  # it is still away
    assert says(output, "list-store-answer", "checkpoint.copy_to", "s3://bucket/end")
    assert says(output, "set-null-trains-without", "checkpoint.copy_to")
    proxy.drops_connections = False
    small_job.finish(job, *copy_options("end"))
    assert small_job.last_checkpoint(small_job.newest_run(job)).name in list_checkpoints(open_store("end/small-001"))


def test_of_two_trainers_the_newer_attempt_goes_on(proxy: FaultyStore, tmp_path: Path) -> None:
    """The first one still trains: it sends nothing more, and ends with 11."""
    first_job, second_job = (small_job.write_job(tmp_path / name, epochs="2000") for name in ("one", "two"))
    endless = ("--set", "train.early_stopping=null")
    first_process = small_job.start(first_job, *endless, *copy_options("second"))
    wait(lambda: bool(steps("second/small-001")))
    second_process = small_job.start(second_job, *endless, *copy_options("second"))
    first_log = first_job.parent / "job.log"
    is_lost = get_message("written-another-process-now")
    wait(lambda: second_process.poll() is not None or is_lost in first_log.read_text())
    assert second_process.poll() is None, (second_job.parent / "job.log").read_text()
    first_process.send_signal(signal.SIGTERM)
    assert first_process.wait(PATIENT) == 11, (first_job.parent / "job.log").read_text()
    last_step = max(steps("second/small-001"))
    wait(lambda: max(steps("second/small-001")) > last_step)
    second_process.send_signal(signal.SIGTERM)
    assert second_process.wait(PATIENT) == 75, (second_job.parent / "job.log").read_text()
    last = small_job.last_checkpoint(small_job.newest_run(second_job))
    assert last.name in list_checkpoints(open_store("second/small-001"))
