"""One owner of the copy of a run: who becomes it, and how an earlier one that lives after all is kept from writing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain.errors import Busy, CheckpointError
from drivetrain.storage.object_store import Patience
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor.remote_copy.owner_file import LostOwnership, OwnerFile
from drivetrain.supervisor.remote_copy.run_copy import RunCopy
from drivetrain.training.checkpoints.manifest import MANIFEST, verify
from tests.messages import says
from tests.object_store import Fault, FaultyStore
from tests.supervisor.remote_copy.fake_run import (
    fetch_copy,
    list_checkpoints,
    open_copy,
    open_store,
    read_owner,
    take_ownership,
    write_checkpoint,
    write_state,
)


def test_a_start_on_an_empty_disk_takes_over_and_says_from_whom(
    proxy: FaultyStore, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = open_copy("empty", run, writer="a")
    first.send()
    assert capsys.readouterr().out == ""
    second = take_ownership("empty", tmp_path / "elsewhere" / "parts-001", "b")
    message = capsys.readouterr().out
    assert says(message, "was-written-by-process", "s3://bucket/empty")
    assert says(message, "start-resumes-owns-now")
    with pytest.raises(LostOwnership):
        first.owner_file.check()
    first.owner_file.release()
    second.check()
    assert read_owner(open_store("empty")).owner.writer == "b"


def test_a_machine_that_was_replaced_does_not_take_back(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    """Its disk has the run; the message names the owner, and how to take over."""
    open_copy("replaced", run, writer="a").send()
    second = take_ownership("replaced", tmp_path / "elsewhere" / "parts-001", "b")
    with pytest.raises(Busy) as caught:
        take_ownership("replaced", run)
    assert caught.value.exit_code == 11
    assert says(caught.value.given, "taken-over-run", "s3://bucket/replaced", second.owner.describe(), run)
    assert says(caught.value.action, "move-away-call-same", run)
    second.check()
    second.release()
    take_ownership("replaced", run)


def test_the_same_disk_goes_on_wherever_it_was_cut(proxy: FaultyStore, run: Path) -> None:
    """Its starts are noted before the store hears of them, so that one whose answer was lost is known too."""
    first = take_ownership("same", run, "a")
    proxy.fault = lambda number, method, path: Fault("gone") if method == "PUT" else None
    with pytest.raises(RemoteError):
        take_ownership("same", run, "b")
    proxy.fault = lambda number, method, path: Fault("lost") if method == "PUT" else None
    with pytest.raises(RemoteError):
        take_ownership("same", run, "c")
    proxy.fault = lambda number, method, path: None
    take_ownership("same", run, "d")
    with pytest.raises(LostOwnership):
        first.check()


def test_one_that_has_ended_is_free(
    proxy: FaultyStore, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = open_copy("back", run)
    copy.send()
    copy.owner_file.release()
    take_ownership("back", tmp_path / "elsewhere" / "parts-001")
    assert capsys.readouterr().out == ""


def test_one_of_two_starts_at_once_becomes_the_owner(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    """The other one takes the copy between the read and the put of the first."""
    open_copy("race", run).send()
    other = OwnerFile(open_store("race"), "b")

    def take_between(number: int, method: str, path: str) -> Fault | None:
        if method == "PUT":
            proxy.fault = lambda number, method, path: None
            other.take(tmp_path / "b" / "parts-001")
        return None

    proxy.fault = take_between
    with pytest.raises(Busy, match="in this moment"):
        take_ownership("race", tmp_path / "c" / "parts-001", "c")
    other.check()


@pytest.mark.parametrize("ends", [False, True])
def test_an_owner_that_publishes_meanwhile_is_taken_over(
    proxy: FaultyStore, run: Path, tmp_path: Path, ends: bool
) -> None:
    """It publishes a checkpoint, or has ended, between the read and the put of a start that resumes elsewhere."""
    prefix = f"meanwhile-{ends}"
    first = open_copy(prefix, run)
    write_checkpoint(run, "step-100")
    first.send()
    write_checkpoint(run, "step-200")

    def publish_between(number: int, method: str, path: str) -> Fault | None:
        if method == "PUT":
            proxy.fault = lambda number, method, path: None
            first.send()
            if ends:
                first.owner_file.release()
        return None

    proxy.fault = publish_between
    second = take_ownership(prefix, tmp_path / "elsewhere" / "parts-001", "b")
    second.check()
    assert sorted(second.owner.checkpoints) == ["step-100", "step-200"]
    with pytest.raises(LostOwnership):
        first.owner_file.check()


@pytest.mark.parametrize("fault", ["lost", "slow down"])
def test_an_answer_that_is_lost_does_not_lose_the_copy(proxy: FaultyStore, run: Path, fault: str) -> None:
    counts = {"PUT": 0}

    def fail_once(number: int, method: str, path: str) -> Fault | None:
        counts["PUT"] += method == "PUT"
        return Fault(fault) if method == "PUT" and counts["PUT"] == 1 else None

    proxy.fault = fail_once
    file = take_ownership(f"answer-{fault[:4]}", run)
    counts["PUT"] = 0
    write_checkpoint(run, "step-10")
    copy = RunCopy(file, run, 2)
    file.publish(replace(file.owner, checkpoints={}))
    counts["PUT"] = 0
    copy.send()
    file.check()
    assert list_checkpoints(file.store) == ["step-10"]


def test_a_publication_whose_answer_never_came_stays_ours(proxy: FaultyStore, run: Path) -> None:
    copy = open_copy("never", run, keep=1)
    write_checkpoint(run, "step-10")
    copy.send()
    write_checkpoint(run, "step-20")
    copies = iter([Fault("lost"), *[Fault("gone")] * 1000])
    proxy.fault = lambda number, method, path: next(copies) if method == "PUT" and "owner.json" in path else None
    with pytest.raises(RemoteError):
        copy.send()
    proxy.fault = lambda number, method, path: None
    copy.send()
    assert list_checkpoints(open_store("never")) == ["step-20"]
    assert not [
        stored_object.name for stored_object in open_store("never").objects() if "step-10/" in stored_object.name
    ]


def test_a_store_that_is_away_does_not_lose_the_copy(proxy: FaultyStore, run: Path) -> None:
    file = take_ownership("away", run)
    proxy.drops_connections = True
    with pytest.raises(RemoteError):
        file.check()
    proxy.drops_connections = False
    file.check()


def train_elsewhere(prefix: str, folder: Path, step: int) -> RunCopy:
    """Another machine resumes from the store, and trains on; its bytes are others."""
    file = take_ownership(prefix, folder)
    fetch_copy(prefix, folder)
    step += 200 * (folder / "checkpoints" / f"step-{step}").exists()
    path = write_checkpoint(folder, f"step-{step}", size=9000)
    copy = RunCopy(file, folder, 2)
    copy.send()
    assert verify(path) is None
    return copy


@pytest.mark.parametrize("request_number", range(1, 30))
def test_of_two_writers_exactly_one_goes_on(proxy: FaultyStore, run: Path, tmp_path: Path, request_number: int) -> None:
    """The first one lives: another takes over at each of its requests in turn, and it learns so at its next publication."""
    prefix, folder = f"two-{request_number}", tmp_path / "elsewhere" / "parts-001"
    file = OwnerFile(open_store(prefix, Patience(retries=20.0, silence=20.0, connect=2.0)), "a")
    file.take(run)
    first_copy = RunCopy(file, run, 2)
    write_checkpoint(run, "step-100")
    first_copy.send()
    write_checkpoint(run, "step-200", size=5000)
    write_state(run, "done")
    count, second_copies = [0], list[RunCopy]()

    def take_over(number: int, method: str, path: str) -> Fault | None:
        count[0] += 1
        if count[0] == request_number:
            proxy.fault = lambda number, method, path: None
            second_copies.append(train_elsewhere(prefix, folder, 200 if request_number % 2 else 300))
        return None

    proxy.fault = take_over
    try:
        first_copy.send()
        is_complete = True
    except LostOwnership:
        is_complete = False
    proxy.fault = lambda number, method, path: None
    if not second_copies:
        assert is_complete
        return
    with pytest.raises(LostOwnership):
        first_copy.owner_file.check()
    second_copy = second_copies[0]
    write_state(folder, "running")
    second_copy.send()  # it is the owner, whatever a late request of the first one has done
    owner = read_owner(open_store(prefix)).owner
    assert owner.writer == second_copy.owner_file.writer
    assert owner.status == "running"
    third_folder = tmp_path / "third"
    fetch_copy(prefix, third_folder)
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert list_checkpoints(open_store(prefix)) == names[-2:]
    for path in (third_folder / "checkpoints").iterdir():
        assert verify(path) is None
        assert (path / MANIFEST).read_bytes() == (folder / "checkpoints" / path.name / MANIFEST).read_bytes()
    take_ownership(prefix, tmp_path / "fourth")  # what the first one has left is removed by the next start
    folders = {stored_object.name.split("/")[1] for stored_object in open_store(prefix).objects("checkpoints")}
    assert folders == {entry.folder.split("/")[0] for entry in owner.checkpoints.values()}


def test_a_copy_without_an_owner_file_is_refused(proxy: FaultyStore, run: Path, tmp_path: Path) -> None:
    """Its start would be a new run beside the checkpoints of the old one; without the copy, this disk's run is sent again."""
    write_checkpoint(run, "step-10")
    open_copy("ownerless", run).send()
    store = open_store("ownerless")
    store.delete(["owner.json"])
    for folder in (run, tmp_path / "elsewhere"):
        with pytest.raises(CheckpointError, match=r"s3://bucket/ownerless/owner\.json is missing") as caught:
            take_ownership("ownerless", folder)
        assert "--new" in caught.value.action
    store.delete([entry.name for entry in store.objects()])
    open_copy("ownerless", run).send()
    assert list_checkpoints(store) == ["step-10"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"checkpoints": {"../step-1": {"folder": "../step-1"}}}'])
def test_a_damaged_owner_file_is_reported(proxy: FaultyStore, run: Path, content: bytes) -> None:
    prefix = f"damaged-file-{len(content)}"
    write_checkpoint(run, "step-10")
    open_copy(prefix, run).send()
    open_store(prefix).put("owner.json", content)
    with pytest.raises(CheckpointError, match=r"owner\.json is damaged"):
        take_ownership(prefix, run)
