"""Commands that look at a run in a store: it is brought to the user's cache, and what has changed is brought again."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.cli.main import main
from drivetrain.errors import CheckpointError, SpecError, StorageError
from drivetrain.hardware import disk_space
from drivetrain.storage.store_errors import RemoteError
from drivetrain.supervisor import named_run
from tests import report_folder
from tests.messages import says
from tests.object_store import FaultyStore
from tests.supervisor.remote_copy.fake_run import make_run, open_copy, open_store, write_checkpoint, write_state


@pytest.fixture
def proxy(proxy: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The same, for a user with an empty cache."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return proxy


def test_only_what_has_changed_is_brought_again(proxy: FaultyStore, tmp_path: Path) -> None:
    run = make_run(tmp_path / "parts-001")
    write_checkpoint(run, "step-10")
    copy = open_copy("seen/parts-001", run, 2)
    copy.send()
    cached_run = named_run.fetch_local(named_run.parse("s3://bucket/seen/parts-001"))
    assert (
        cached_run == disk_space.find_cache_folder() / disk_space.RUNS_FOLDER / "s3" / "bucket" / "seen" / "parts-001"
    )
    assert cached_run.is_relative_to(tmp_path / "cache")
    assert (cached_run / "metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()
    assert not (cached_run / "checkpoints").exists(), "they are large, and no command that looks needs them"
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    write_state(run, "done")
    copy.send()
    open_store("seen/parts-001").delete(["model/config.json"])
    (cached_run / "report.html").write_text("written here")
    count = len(proxy.requests)
    named_run.fetch_local(named_run.parse("s3://bucket/seen/parts-001"))
    assert [path.rpartition("/")[2] for _, path in proxy.requests[count:][1:]] == ["metrics.jsonl", "state.json"]
    assert (cached_run / "metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()
    assert not (cached_run / "model" / "config.json").exists()
    assert (cached_run / "report.html").exists()


def test_report_and_watch_of_a_run_elsewhere(
    proxy: FaultyStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = report_folder.make_run(tmp_path / "elsewhere")
    open_copy("shown/parts-001", run, 2).send()
    assert main(["report", "s3://bucket/shown/parts-001"]) == 0
    output = capsys.readouterr()
    assert "downloaded to" in output.err
    assert Path(output.out.split()[-1]).stat().st_size > 1000
    assert main(["watch", "s3://bucket/shown/parts-001"]) == 0
    assert says(capsys.readouterr().out, "when-it-was-copied-last")


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("s3://bucket/none", CheckpointError, "s3://bucket/none: there is no run"),
        ("s3://nowhere/none", RemoteError, "there is no bucket nowhere"),
        ("https://host/run", SpecError, "is no folder of an object store"),
        ("s3://me:word@bucket/x", SpecError, "with a user or password"),
    ],
)
def test_bad_addresses(proxy: FaultyStore, address: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        named_run.fetch_local(named_run.parse(address))
    assert "word@" not in str(raised.value)


def test_the_runs_of_a_folder_are_named(proxy: FaultyStore, tmp_path: Path) -> None:
    for name in ("parts-001", "parts-002"):
        open_copy(f"list/{name}", make_run(tmp_path / name), 2).send()
    with pytest.raises(CheckpointError) as raised:
        named_run.fetch_local(named_run.parse("s3://bucket/list"))
    assert raised.value.possible == "runs there: parts-001, parts-002"
    assert raised.value.action == "name one: s3://bucket/list/parts-002"


def test_a_cache_that_cannot_be_written(proxy: FaultyStore, tmp_path: Path) -> None:
    open_copy("full/parts-001", make_run(tmp_path / "parts-001"), 2).send()
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError):
        named_run.fetch_local(named_run.parse("s3://bucket/full/parts-001"))
