"""Files that the code of a network reads are stored with the model, and used from there or checked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.data.custom import user_code
from drivetrain.data.custom.custom_data import load
from drivetrain.errors import CheckpointError, SpecError
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.models import saved_model
from drivetrain.models.build import build
from drivetrain.training import recorded_inputs
from tests import own_job
from tests.axes import each_once
from tests.messages import saying, says

torch.set_num_threads(1)
NET = """
import json
from pathlib import Path
from torch import nn

def build(outputs, {parameters}):
    {read}
    torch_layer = nn.Linear(4, outputs)
    nn.init.ones_(torch_layer.weight)
    return nn.Sequential(nn.LeakyReLU(float(slope)), torch_layer)
"""
LATE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(4, outputs)

    def forward(self, x):
        {read}
        return self.last(nn.functional.leaky_relu(x, float(slope)))
"""
OPEN = "slope = json.loads(Path({}).read_text())['slope']"
FALLBACK = """path = Path(__file__).with_name("net.json")
    slope = json.loads(path.read_text())["slope"] if path.exists() else 1"""
CASES: dict[str, tuple[dict[str, str], str]] = {
    "argument": ({"my_model.py": NET.format(parameters="config", read=OPEN.format("config"))}, "{config: cfg.json}"),
    "argument in a folder": (
        {"my_model.py": NET.format(parameters="config", read=OPEN.format("config")), "conf/a.json": '{"slope": 5}'},
        "{config: conf/a.json}",
    ),
    "argument in a list": (
        {"my_model.py": NET.format(parameters="configs", read=OPEN.format("configs[0]"))},
        "{configs: [cfg.json]}",
    ),
    "folder": (
        {
            "my_model.py": NET.format(parameters="place", read=OPEN.format("place, 'a.json'")),
            "conf/a.json": '{"slope": 5}',
        },
        "{place: conf}",
    ),
    "imported in forward": (
        {"my_model.py": LATE.format(read="from neighbor import slope"), "neighbor.py": "slope = 5"},
        "{}",
    ),
}


def files(folder: Path) -> list[Path]:
    return [folder / name for name in ("cfg.json", "conf/a.json", "neighbor.py") if (folder / name).exists()]


def store_network(folder: Path, code: dict[str, str], arguments: str, **settings: Any) -> torch.nn.Module:
    """Build the network of a job, and store it as a training does."""
    factory = "Net" if "class Net" in code["my_model.py"] else "build"
    path = own_job.write_job(
        folder, {"cfg.json": '{"slope": 5}', **code}, model=f"factory: {factory}, arguments: {arguments}"
    )
    (folder / "run").mkdir()
    source = SpecSource(path)
    job: Any = source.copy_to(folder / "run", source.load()).load()
    dataset = load(job)
    model = build(job, dataset)
    assert model.code is not None
    config: dict[str, Any] = {
        "task": "custom",
        "builder": "own",
        "arguments": model.arguments,
        "preprocessing": dataset.preprocessing,
    }
    config["heads"] = [asdict(head) for head in dataset.heads.values()]
    weights = {"model": model.module.state_dict()}
    config |= {"trained": {}, "code": model.code.digests()}
    saved_model.commit(folder / "run" / "model", weights, config, model.code.sources)
    return model.module


@pytest.mark.parametrize(("edit", "name"), each_once(["edited", "removed"], CASES))
def test_a_file_that_is_changed_after_the_training_changes_nothing(
    name: str, edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    network = store_network(tmp_path, *CASES[name])
    x = -torch.ones(3, 4)
    expected = network(x)
    for path in files(tmp_path):
        path.write_text('{"slope": 7}' if path.suffix == ".json" else "slope = 7")
        if edit == "removed":
            path.unlink()
    assert torch.equal(saved_model.load(tmp_path / "run", consent=True).network(x), expected)


@pytest.mark.parametrize("name", ["argument", "folder"])
def test_a_stored_file_that_was_edited_is_refused(name: str, tmp_path: Path) -> None:
    store_network(tmp_path, *CASES[name])
    for path in files(tmp_path / "run" / "model" / "code"):
        path.write_text('{"slope": 7}')
    with pytest.raises(CheckpointError, match="has SHA-256"):
        saved_model.load(tmp_path / "run", consent=True)


@pytest.mark.parametrize("name", ["{outside}", "../a/cfg.json"])
def test_a_file_outside_of_the_folder_is_read_where_it_lies(name: str, tmp_path: Path) -> None:
    """It is not stored with the model; a run records it as data, so a change is refused."""
    outside, folder = tmp_path / "a" / "cfg.json", tmp_path / "job"
    for path in (outside.parent, folder):
        path.mkdir()
    outside.write_text('{"slope": 5}')
    code, argument = user_code.Code(folder), name.format(outside=outside)
    assert code.with_copies([argument]) == [argument]
    assert code.sources == {}
    job: Any = own_job.job(folder, CASES["argument"][0], model=f"arguments: {{config: {argument}}}")
    assert recorded_inputs._find_paths(job)["model.arguments.config"].resolve() == outside


def test_texts_and_large_files_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.data.custom.code_files.MAX_COPY_BYTES", 10)
    (tmp_path / "large.bin").write_bytes(b"x" * 11)
    code = user_code.Code(tmp_path)
    arguments = {"a": "large.bin", "b": ["resnet18", 3, ""], "c": "\0", "d": "x" * 5000, "e": "."}
    assert code.with_copies(arguments) == arguments
    assert code.sources == {}


def test_a_retry_after_an_edit_reads_the_copy_of_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = store_network(tmp_path, *CASES["argument"])
    (tmp_path / "cfg.json").write_text('{"slope": 7}')
    user_code._opened_codes.clear()
    job: Any = SpecSource(tmp_path / "job.yaml", copy=tmp_path / "run" / "job").load()
    x = -torch.ones(3, 4)
    assert torch.equal(build(job, load(job)).module(x), network(x))


def test_code_that_writes_beside_itself_does_not_change_the_model(tmp_path: Path) -> None:
    write = "Path(__file__).with_name('log.txt').write_text('built'); slope = 5"
    store_network(tmp_path, {"my_model.py": NET.format(parameters="x=0", read=write)}, "{}")
    stored = tmp_path / "run" / "model" / "code"
    before = {path: path.read_bytes() for path in stored.rglob("*")}
    for _ in range(2):
        user_code._opened_codes.clear()
        saved_model.load(tmp_path / "run", consent=True)
    assert {path: path.read_bytes() for path in stored.rglob("*")} == before


@pytest.mark.parametrize("read", [OPEN.format("__file__).with_name('net.json'"), FALLBACK])
def test_a_file_that_is_not_stored_is_refused_before_training(tmp_path: Path, read: str) -> None:
    """Code that went on without the file predicted with another network than the trained one, without a word."""
    with pytest.raises(SpecError, check=saying("opens-which-is-not-stored", "my_model.py", "net.json")) as caught:
        store_network(
            tmp_path, {"my_model.py": NET.format(parameters="x=0", read=read), "net.json": '{"slope": 5}'}, "{}"
        )
    assert "set model.arguments: {path: net.json}" in str(caught.value)


def test_a_file_that_was_not_copied_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.data.custom.code_files.MAX_COPY_BYTES", 1)
    read = OPEN.format("__file__).with_name('net.json'")
    store_network(tmp_path, {"my_model.py": NET.format(parameters="x=0", read=read), "net.json": '{"slope": 5}'}, "{}")
    stored = tmp_path / "run" / "model" / "code"
    with pytest.raises(
        CheckpointError, check=saying("opens-which-is-not-in", "my_model.py", "net.json", stored)
    ) as caught:
        saved_model.load(tmp_path / "run", consent=True)
    assert says(caught.value.action, "name-in-arguments-or-copy", "net.json", stored / "net.json")
    (stored / "net.json").write_text('{"slope": 5}')
    user_code._opened_codes.clear()
    saved_model.load(tmp_path / "run", consent=True)
