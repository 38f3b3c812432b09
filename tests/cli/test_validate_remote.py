"""`drivetrain validate --remote`: every store of a spec is used once, before a run needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.storage.object_store import Patience
from drivetrain.supervisor import remote_check
from tests.messages import get_message, says, says_only
from tests.object_store import SECRET, Fault, FaultyStore, moto
from tests.remote_data import put_folder, write_photos
from tests.supervisor.remote_copy.fake_run import faulty_store, open_store

SPEC = """
name: t
task: image-classification
data: {train: "s3://bucket/photos"}
checkpoint: {copy_to: "s3://bucket/runs"}
"""
SET = "set here: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_SECRET_ACCESS_KEY"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto() as address, faulty_store(address):
        put_folder("photos", write_photos(tmp_path_factory.mktemp("photos")))
        yield address


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyStore]:
    monkeypatch.setattr(remote_check, "PATIENCE", Patience(retries=0.3, silence=1.0, connect=1.0))
    monkeypatch.chdir(tmp_path)
    with faulty_store(server) as store:
        yield store


def run_validate(capsys: pytest.CaptureFixture[str], text: str, *options: str) -> tuple[int, list[str], str]:
    """Exit code, lines and errors."""
    Path("job.yaml").write_text(text)
    code = main.main(["validate", "job.yaml", *options])
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err
    return code, output.out.splitlines(), output.err


def test_stores_that_can_be_used(proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    before = [entry.name for entry in open_store("").objects()]
    code, lines, _ = run_validate(capsys, SPEC, "--remote")
    assert code == 0
    assert lines[0] == "job.yaml: valid (t, image-classification)"
    assert says_only(lines[-2], "remote-files-read", "data.train", "s3://bucket/photos", SET)
    assert says_only(lines[-1], "listed-written-read-removed", "checkpoint.copy_to", "s3://bucket/runs", SET)
    assert [entry.name for entry in open_store("").objects()] == before, "the probe is gone"


def test_without_the_option_nothing_is_asked(proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_validate(capsys, SPEC)[0] == 0
    assert proxy.requests == []


def test_an_address_of_the_command_line(proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x").mkdir()
    local = SPEC.replace('"s3://bucket/photos"', "x").partition("checkpoint")[0]
    code, lines, errors = run_validate(capsys, local, "--remote", "--runs", "s3://bucket/mine")
    assert code == 0, errors
    assert says(lines[-1], "listed-written-read-removed-2", "checkpoint.copy_to", "s3://bucket/mine")
    assert says_only(run_validate(capsys, local, "--remote")[1][-1], "remote-job-names-object")


def test_all_that_is_wrong_is_told(proxy: FaultyStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, errors = run_validate(capsys, SPEC.replace("photos", "none").replace("runs", "r"), "--remote")
    assert code == 3, "that of the first"
    assert lines[-1].startswith("  checkpoint.copy_to")
    assert says(errors, "nothing-file-or-folder", "job.yaml", 4, 8, "data.train", "s3://bucket/none")
    proxy.fault = lambda number, method, path: Fault("denied") if method == "PUT" else None
    code, lines, errors = run_validate(capsys, SPEC, "--remote")
    assert code == 7
    assert lines[-1].startswith("  data.train")
    assert errors.startswith("job.yaml:5:14: checkpoint.copy_to: s3://bucket/runs/.drivetrain-probe-")
    assert says(errors, "write-store-refuses-accessdenied", 403)
    proxy.drops_connections = True
    assert run_validate(capsys, SPEC, "--remote")[2].count(get_message("store-does-not-answer")) == 2


@pytest.mark.parametrize("kind", ["careless", "501"])
def test_a_store_without_conditional_writes(proxy: FaultyStore, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    fault = Fault("careless") if kind == "careless" else Fault("answer", 501, "NotImplemented")
    proxy.fault = lambda number, method, path: fault if method == "PUT" else None
    code, _, errors = run_validate(capsys, SPEC, "--remote")
    assert code == 7
    assert says(errors, "store-conditional-writes", "checkpoint.copy_to", "s3://bucket/runs")
    proxy.fault = lambda number, method, path: None
    assert open_store("runs").objects() == [], "the probe is gone"
