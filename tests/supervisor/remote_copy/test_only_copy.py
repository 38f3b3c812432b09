"""The copy in the store may be the only good one: nothing takes it away, neither a resume nor a writer cut off."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drivetrain.errors import CheckpointError
from drivetrain.storage.remote_address import parse
from drivetrain.supervisor.remote_copy.remote_runs import RemoteRuns
from drivetrain.supervisor.remote_copy.run_copy import RunCopy
from drivetrain.training.checkpoints.manifest import verify
from tests.messages import ends_with
from tests.object_store import FaultyStore
from tests.supervisor.remote_copy.fake_run import (
    begin,
    fetch_copy,
    make_run,
    object_of,
    open_copy,
    open_store,
    write_checkpoint,
    write_state,
)


def runs_at(folder: Path, prefix: str) -> RemoteRuns:
    job = SimpleNamespace(name="parts", checkpoint=SimpleNamespace(keep=2))
    return RemoteRuns(folder, cast(Any, job), parse(f"s3://bucket/{prefix}"))


def tags(prefix: str) -> list[tuple[str, str]]:
    return [
        (stored_object.name, stored_object.tag)
        for stored_object in open_store(prefix).objects()
        if not stored_object.name.startswith("attempts/")
    ]


def test_a_resume_sends_under_its_own_number_and_does_not_touch_the_checkpoint_it_came_from(
    proxy: FaultyStore, run: Path, tmp_path: Path
) -> None:
    write_checkpoint(run, "best-50")
    write_checkpoint(run, "step-100", best=50)
    open_copy("resume", run, 2).send()
    before = [row for row in tags("resume") if row[0].startswith("checkpoints/")]
    attempt = begin("resume", tmp_path / "elsewhere")
    fetch_copy("resume", tmp_path / "elsewhere")
    RunCopy(attempt, tmp_path / "elsewhere", 2).send()
    assert set(before) <= set(tags("resume"))


@pytest.mark.parametrize("part", ["MANIFEST.json", "model.safetensors"])
def test_a_copy_that_differs_is_sent_again(proxy: FaultyStore, run: Path, tmp_path: Path, part: str) -> None:
    prefix = f"differs-{part[:5].lower()}"
    write_checkpoint(run, "step-100")
    open_copy(prefix, run, 1).send()
    open_store(prefix).put(object_of(prefix, "step-100", part), b"{}")
    open_copy(prefix, run, 1).send()
    fetch_copy(prefix, tmp_path / "elsewhere")
    assert verify(tmp_path / "elsewhere" / "checkpoints" / "step-100") is None


def test_a_run_that_another_machine_finished_meanwhile_is_not_written_over(
    proxy: FaultyStore, run: Path, tmp_path: Path
) -> None:
    ours = runs_at(run.parent, "race")
    assert ours.names == []
    other = make_run(tmp_path / "elsewhere" / "parts-001")
    write_checkpoint(other, "step-900")
    write_state(other, "done")
    open_copy("race/parts-001", other).send()
    before = tags("race/parts-001")
    with pytest.raises(CheckpointError, match="two different runs"):
        ours.start_copying(run)
    assert tags("race/parts-001") == before


def test_a_damaged_local_checkpoint_does_not_hide_the_good_one_in_the_store(proxy: FaultyStore, run: Path) -> None:
    path = write_checkpoint(run, "step-100")
    open_copy("hidden/parts-001", run, 1).send()
    (path / "model.safetensors").write_bytes(b"x")
    ours = runs_at(run.parent, "hidden")
    ours.fetch_last(done=False)
    ours.release()
    assert verify(path) is None


@pytest.mark.parametrize("damage", ["other bytes", "cut", "no manifest worth its name"])
def test_a_damaged_checkpoint_in_the_store_does_not_hide_the_good_one_here(
    proxy: FaultyStore, run: Path, damage: str
) -> None:
    prefix = f"worse-{damage[:3]}"
    copy = open_copy(f"{prefix}/parts-001", run, 2)
    for step in (100, 200):
        path = write_checkpoint(run, f"step-{step}", size=3000)
        copy.send()
    large = object_of(f"{prefix}/parts-001", "step-200", "model.safetensors")
    length = (path / "model.safetensors").stat().st_size
    match damage:
        case "other bytes":
            open_store(f"{prefix}/parts-001").put(large, b"x" * length)
        case "cut":
            open_store(f"{prefix}/parts-001").put(large, b"x")
        case _:
            open_store(f"{prefix}/parts-001").put(
                object_of(f"{prefix}/parts-001", "step-200", "MANIFEST.json"), b"\xff{"
            )
    shutil.rmtree(path)
    local_checkpoint = write_checkpoint(run, "step-150")
    number = local_checkpoint.stat().st_ino
    ours = runs_at(run.parent, prefix)
    ours.fetch_last(done=False)
    ours.release()
    assert local_checkpoint.stat().st_ino == number, "the folder is left as it is: step-100 of the store is older"
    texts = [json.loads(line)["text"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert "checkpoint step-200 is damaged: " in texts[0]
    assert ends_with(texts[1], "using-which-is-on-this-disk", "step-150")


def test_a_good_local_checkpoint_is_not_downloaded(proxy: FaultyStore, run: Path) -> None:
    path = write_checkpoint(run, "step-100")
    open_copy("good/parts-001", run, 1).send()
    number = path.stat().st_ino
    ours = runs_at(run.parent, "good")
    ours.fetch_last(done=False)
    ours.release()
    assert path.stat().st_ino == number


def test_a_folder_that_is_gone_removes_nothing(proxy: FaultyStore, run: Path) -> None:
    open_copy("nothing", run, 1).send()
    before = tags("nothing")
    run.rename(run.with_name("away"))
    open_copy("nothing", run, 1).send()
    assert tags("nothing") == before


def test_the_copy_of_a_refused_run_is_removed(proxy: FaultyStore, run: Path) -> None:
    ours = runs_at(run.parent, "refused")
    ours.start_copying(run)
    shutil.rmtree(run)
    assert ours.finish(run, 4) == 4
    assert open_store("refused").objects() == []


@pytest.mark.parametrize("done", [False, True])
def test_a_finished_run_is_fetched_only_for_who_asks_whether_it_is_done(
    proxy: FaultyStore, run: Path, done: bool
) -> None:
    """On another machine, which has no run folder; `--if-unfinished` has to know."""
    write_checkpoint(run, "step-100")
    write_state(run, "done")
    open_copy(f"done-{done}/parts-001", run).send()
    shutil.rmtree(run)
    ours = runs_at(run.parent, f"done-{done}")
    ours.fetch_last(done=done)
    ours.release()
    assert run.is_dir() == done
