"""Training from a name on the hub: fetched once, the same commit when resumed, a pickle converted by itself."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from drivetrain.cli.main import main
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.models import saved_model
from drivetrain.pretrained import folder as pretrained
from drivetrain.pretrained.hub_cache import find_repository
from drivetrain.pretrained.hub_error import NETWORK
from drivetrain.system.units import format_bytes
from tests import hub_server, reports, tiny
from tests.hub_double import COMMIT
from tests.hub_server import NAME, Fault, Hub
from tests.messages import begins_with, get_message, says, says_each, says_only

MODEL = f"{{source: transformers, name: {NAME}}}"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a small BERT, and reports in this folder."""
    reports.write_reports(tmp_path)
    with hub_server.serve_hub(Hub(hub_server.files_of(reports.save_encoder(tmp_path)))) as bert_hub:
        monkeypatch.setenv("HF_ENDPOINT", bert_hub.endpoint)
        shutil.rmtree(tmp_path / "saved")
        yield bert_hub


def store_pickle(hub: Hub, folder: Path) -> dict[str, torch.Tensor]:
    """The hub has the weights only as a pickle."""
    weights = safetensors.torch.load(hub.files.pop("model.safetensors"))
    torch.save(weights, folder / "pytorch_model.bin")
    hub.files["pytorch_model.bin"] = (folder / "pytorch_model.bin").read_bytes()
    return weights


def test_it_starts_with_the_weights_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    run = tiny.assemble_plain_run(reports.job(tmp_path, model=MODEL), tmp_path)
    hub_weights = safetensors.torch.load(hub.files["model.safetensors"])
    encoder_weights = run.model.encoder.state_dict()
    assert all(torch.equal(encoder_weights[name], hub_weights[name]) for name in encoder_weights)
    assert any(note.startswith(f"encoder bert from {NAME} at {COMMIT[:12]}; ") for note in run.dataset.notes)
    assert len(hub.paths("/revision/")) == 1, "asked once, although data and network both need it"


def test_a_pickle_is_converted_by_itself(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pickled_weights = store_pickle(hub, tmp_path)
    encoder = pretrained.find(reports.job(tmp_path, model=MODEL), NAME)
    output = capsys.readouterr().out
    assert says(output, "hub-pickle-converting-isolated", NAME, "pytorch_model.bin")
    assert sorted(path.name for path in encoder.folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    encoder_weights = encoder.network().state_dict()
    assert all(
        torch.equal(encoder_weights[name], pickled_weights[name])
        for name in encoder_weights
        if not name.startswith("pooler.")
    )
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.read_bytes()[:2] == b"PK"]
    hub.requests.clear()
    assert pretrained.find(reports.job(tmp_path, model=MODEL), NAME).folder == encoder.folder
    assert hub.requests == []


def test_a_killed_conversion_is_done_again_without_locks(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch of a cache with locks removes what is left."""
    store_pickle(hub, tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(fcntl, "flock", fail)
    digest = hashlib.sha256(hub.files["pytorch_model.bin"]).hexdigest()
    part = find_repository(NAME, NETWORK).root / "blobs" / f"{digest}.safetensors.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    assert pretrained.find(reports.job(tmp_path, model=MODEL), NAME).network()
    assert not part.exists()


def test_a_pickle_that_is_no_checkpoint(hub: Hub, tmp_path: Path) -> None:
    store_pickle(hub, tmp_path)
    hub.files["pytorch_model.bin"] = b"cos\nsystem\n(S'touch /tmp/never'\ntR."
    with pytest.raises(SpecError, match=r"has only a pickle, which cannot be converted: (.|\n)*use another network"):
        load(reports.job(tmp_path, model=MODEL))
    assert not list((tmp_path / "home").rglob("model.safetensors"))


def test_code_of_a_repository_is_neither_fetched_nor_run(hub: Hub, tmp_path: Path) -> None:
    hub.files["config.json"] = json.dumps(
        json.loads(hub.files["config.json"]) | {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    ).encode()
    hub.files["mine.py"] = f"open({str(tmp_path / 'ran')!r}, 'w')".encode()
    with pytest.raises(SpecError, match=r"config.json cannot be used: (.|\n)*part of transformers"):
        load(reports.job(tmp_path, model=MODEL))
    assert not (tmp_path / "ran").exists()
    assert hub.paths(".py") == []


def test_errors_name_the_key(hub: Hub, tmp_path: Path) -> None:
    hub.faults = [Fault(status=401, headers={"X-Error-Code": "GatedRepo"})]
    with pytest.raises(SpecError) as caught:
        load(reports.job(tmp_path, model=MODEL))
    first, possible, action = str(caught.value).splitlines()
    assert says_only(first, "hub-answers-network-gated", f"{tmp_path}/job.yaml", 5, 31, "model.name", NAME, 401)
    assert says_only(possible, "possible-account-given-access")
    assert says_only(action, "ask-access-page-export", hub.endpoint, f"{hub.endpoint}/settings/tokens")


def test_a_revision_of_a_folder(hub: Hub, tmp_path: Path) -> None:
    reports.save_encoder(tmp_path)
    with pytest.raises(SpecError, match=r"job.yaml:5:44: model.revision: .*saved is a local folder(.|\n)*remove it"):
        load(reports.job(tmp_path, model="{source: transformers, name: saved, revision: main}"))


def run_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drivetrain", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run_training(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command("train", folder / "job.yaml", "--runs", folder / "runs", *options)


@pytest.mark.slow
def test_a_run_keeps_its_commit_and_predicts_without_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.job(tmp_path, model=MODEL)
    assert run_training(tmp_path, "--set", "train.max_time=0.01s").returncode == 75
    run = tmp_path / "runs" / "reports-001"
    assert json.loads((run / "inputs.json").read_text())["pretrained_commit"] == COMMIT
    # Meanwhile main has moved, another program has fetched it, and the cache has lost the old commit.
    hub.revisions = {"main": OTHER, "old": COMMIT}
    cache_folder = tmp_path / "home" / "hub" / "models--casa--beto"
    (cache_folder / "refs" / "main").write_text(OTHER)
    shutil.rmtree(cache_folder / "snapshots")
    process = run_training(tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"encoder bert from {NAME} at {COMMIT[:12]}" in process.stdout

    shutil.copytree(run / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "home")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    new_reports = reports.write_table(tmp_path / "new.csv", [["motor no arranca", ""], ["freno ruidoso", ""]])
    process = run_command("predict", tmp_path / "elsewhere", new_reports, "--output", tmp_path / "out.csv")
    assert process.returncode == 0, process.stderr
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3
    assert not (tmp_path / "home").exists()
    stored_tokenizer = saved_model.load(tmp_path / "elsewhere").preprocessing["tokenizer"]["json"]
    assert json.loads(stored_tokenizer)["model"] == json.loads(hub.files["tokenizer.json"])["model"]


def test_fetch_fills_the_cache_for_a_machine_without_a_network(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports.job(tmp_path, model=MODEL)
    assert main(["fetch", str(tmp_path / "job.yaml")]) == 0
    first_lines = capsys.readouterr().out.splitlines()
    size = sum(map(len, hub.files.values())) / 1e6
    assert says_each(
        first_lines,
        [
            f"hub: fetching {NAME} at {COMMIT[:12]} from {hub.endpoint}: 3 files, {size:,.1f} MB",
            get_message("fetched-files-mb-compared", NAME, 3, f"{size:,.1f}"),
            *(f"  {name}  {format_bytes(len(content))}" for name, content in sorted(hub.files.items())),
            f"revision main: commit {COMMIT}",
            f"in {tmp_path}/home/hub/models--casa--beto/snapshots/{COMMIT}",
        ],
    )
    hub.requests.clear()
    assert main(["fetch", str(tmp_path / "job.yaml")]) == 0
    second_lines = capsys.readouterr().out.splitlines()
    assert begins_with(second_lines[0], "everything-files-mb-compared", NAME, 3, f"{size:,.1f}")
    assert (second_lines[1:], hub.requests) == (first_lines[2:], [])
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert load(reports.job(tmp_path, model=MODEL)).preprocessing["kind"] == "texts"
    reports.job(tmp_path)
    assert main(["fetch", str(tmp_path / "job.yaml")]) == 0
    assert says_only(capsys.readouterr().out, "job-needs-nothing-hugging", f"{tmp_path}/job.yaml")


def test_fetch_of_a_name_that_is_nowhere(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports.job(tmp_path, model=MODEL.replace("beto", "bet0"))
    assert main(["fetch", str(tmp_path / "job.yaml")]) == 2
    assert says(capsys.readouterr().err, "casa-bet0-hub-network", "model.name", 404)
