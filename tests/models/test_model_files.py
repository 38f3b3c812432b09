"""Files that the code of a network reads are stored with the model, and used from there or checked."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.data.custom import user_code
from drivetrain.data.custom.custom_data import load
from drivetrain.errors import CheckpointError
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.models import saved_model
from drivetrain.models.build import build
from tests import own_job
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
    "beside the code": (
        {"my_model.py": NET.format(parameters="x=0", read=OPEN.format("__file__).with_name('cfg.json'"))},
        "{}",
    ),
    "in a folder beside the code": (
        {
            "my_model.py": NET.format(parameters="x=0", read=OPEN.format("__file__).parent.joinpath('conf', 'a.json'")),
            "conf/a.json": '{"slope": 5}',
        },
        "{}",
    ),
    "a table": (
        {
            "my_model.py": NET.format(
                parameters="x=0",
                read="import os; slope = Path(os.path.dirname(__file__) + '/slope.csv').read_text()",
            ),
            "slope.csv": "5",
        },
        "{}",
    ),
    "read in forward": (
        {
            "my_model.py": LATE.format(
                read="import pathlib; slope = pathlib.Path(__file__).with_name('slope.txt').read_text()"
            ),
            "slope.txt": "5",
        },
        "{}",
    ),
    "imported in forward": (
        {"my_model.py": LATE.format(read="from neighbor import slope"), "neighbor.py": "slope = 5"},
        "{}",
    ),
}


def files(folder: Path) -> list[Path]:
    return [
        folder / name
        for name in ("cfg.json", "conf/a.json", "slope.txt", "slope.csv", "neighbor.py")
        if (folder / name).exists()
    ]


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


@pytest.mark.parametrize("edit", ["edited", "removed"])
@pytest.mark.parametrize("name", CASES)
def test_a_file_that_is_changed_after_the_training_changes_nothing(
    name: str, edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    network = store_network(tmp_path, *CASES[name])
    x = -torch.ones(3, 4)
    expected = network(x)
    for path in files(tmp_path):
        path.write_text('{"slope": 7}' if path.suffix == ".json" else "slope = 7" if path.suffix == ".py" else "7")
        if edit == "removed":
            path.unlink()
    assert torch.equal(saved_model.load(tmp_path / "run", consent=True).network(x), expected)


@pytest.mark.parametrize("name", ["argument", "beside the code", "folder"])
def test_a_stored_file_that_was_edited_is_refused(name: str, tmp_path: Path) -> None:
    store_network(tmp_path, *CASES[name])
    for path in files(tmp_path / "run" / "model" / "code"):
        path.write_text('{"slope": 7}')
    with pytest.raises(CheckpointError, match="has SHA-256"):
        saved_model.load(tmp_path / "run", consent=True)


def test_an_argument_outside_of_the_folder_is_stored_too(tmp_path: Path) -> None:
    outside = tmp_path / "a" / "cfg.json"
    outside.parent.mkdir()
    outside.write_text('{"slope": 5}')
    folder = tmp_path / "job"
    folder.mkdir()
    network = store_network(folder, CASES["argument"][0], f"{{config: {outside}}}")
    outside.unlink()
    x = -torch.ones(3, 4)
    assert torch.equal(saved_model.load(folder / "run", consent=True).network(x), network(x))


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


def test_a_retry_after_an_edit_beside_the_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cfg.json").write_text("1")
    (tmp_path / "net.py").write_text("NAMES = 'cfg.json', 'absent.json', '../cfg.json', '/cfg.json'")
    user_code.Code(tmp_path, None, tmp_path / "copy").read_with_imports("net.py")
    (tmp_path / "cfg.json").write_text("2")
    retried_code = user_code.Code(tmp_path, None, tmp_path / "copy")
    with pytest.raises(CheckpointError, check=saying("changed-since-run-started", "cfg.json")):
        retried_code.read_with_imports("net.py")
    assert json.loads((tmp_path / "copy" / "cfg.json").read_text()) == 1


WRITES = {
    "a name": "LOG = Path(__file__).with_name('log.txt')\nwith open(LOG, 'a') as log:\n    log.write('built')",
    "a path": "(Path(__file__).parent / 'log.txt').open(mode='a').write('built')",
    "a text": "LOG = Path(__file__).with_name('log.txt')\nLOG.write_text(LOG.read_text() + 'built')",
    "an array": "import numpy as np\nnp.savetxt(Path(__file__).with_name('log.txt'), [1, 2])",
    "a log": "import logging\nlogging.FileHandler(Path(__file__).with_name('log.txt')).close()",
}


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_the_code_writes_is_no_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        f"from pathlib import Path\nSLOPE = open(Path(__file__).parent / 'a' / 'cfg.json')\n{WRITES[name]}\n"
    )
    (tmp_path / "a").mkdir()
    for file in ("a/cfg.json", "log.txt"):
        (tmp_path / file).write_text("1")
    code = user_code.Code(tmp_path, None, tmp_path / "copy")
    code.read_with_imports("net.py")
    assert set(code.digests()) == {"net.py", "a/cfg.json"}
    user_code.record_digests(tmp_path, code)
    (tmp_path / "log.txt").write_text("2")
    resumed_code = user_code.Code(tmp_path, None, tmp_path / "copy")
    resumed_code.read_with_imports("net.py")
    user_code.record_digests(tmp_path, resumed_code)


def test_code_that_writes_beside_itself_does_not_change_the_model(tmp_path: Path) -> None:
    write = "log = Path(__file__).with_name('log.txt'); os.truncate(log, 0); slope = 5"
    store_network(
        tmp_path, {"my_model.py": "import os\n" + NET.format(parameters="x=0", read=write), "log.txt": "1"}, "{}"
    )
    stored = tmp_path / "run" / "model" / "code"
    before = {path: path.read_bytes() for path in stored.rglob("*")}
    for _ in range(2):
        user_code._opened_codes.clear()
        saved_model.load(tmp_path / "run", consent=True)
    assert {path: path.read_bytes() for path in stored.rglob("*")} == before


def test_a_file_that_was_not_copied_is_named_with_what_to_do(tmp_path: Path) -> None:
    read = OPEN.format("__file__).with_name('net' + '.json'")
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
