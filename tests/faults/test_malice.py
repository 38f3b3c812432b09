"""Checkpoints made to do harm. Each is refused by a reason; nothing of it runs, nothing is written elsewhere, and none takes
more memory than it is long.

What happens is watched from below: an audit hook sees every program, socket, import by pickle and opening of a file.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import CheckpointError
from drivetrain.models import safetensors_file, saved_model
from drivetrain.pretrained import folder as pretrained_folder
from drivetrain.system.files import hash_file, read_json, write_json
from drivetrain.training.checkpoints import checkpoint, run_state
from drivetrain.training.checkpoints.manifest import MANIFEST
from tests import newest_checkpoint, tiny
from tests.faults.malicious_files import MOST, WEIGHTS, Watcher, model_folder, peak, pickle_call, tensors, watcher
from tests.messages import saying

__all__ = ["watcher"]

STATES: dict[str, bytes] = {
    "nested": b"[" * 10**6,
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "nothing": b"{}",
    "a number beyond numbers": b'{"counters": {"step": ' + b"9" * 10**5 + b"}}",
    "60 MB": b'{"a": "' + b"x" * (60 << 20) + b'"}',
    "code": b'{"__reduce__": ["os.system", ["touch canary"]], "counters": "__import__(\'os\').system(\'true\')"}',
}
MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a file above": lambda m: {**m, "files": {**m["files"], "../../outside.json": m["files"]["state.json"]}},
    "a file elsewhere": lambda m: {**m, "files": {**m["files"], "/etc/passwd": {"bytes": 1, "sha256": "0"}}},
    "a pickle": lambda m: {**m, "files": {**m["files"], "model.pkl": {"bytes": 1, "sha256": "0"}}},
    "numbers for names": lambda m: {**m, "files": [1, 2, 3]},
    "entries of another kind": lambda m: {**m, "files": dict.fromkeys(m["files"], "x")},
    "a format to come": lambda m: {**m, "format": 99},
    "text": lambda m: "x" * 100,
    "a megabyte": lambda m: {**m, "more": "x" * (1 << 20)},
}


@pytest.fixture(scope="module")
def good_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good checkpoint of the tiny job."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_run = tiny.assemble_run(folder, tiny.job())
    groups = {"model": tiny_run.model.state_dict(), "optimizer": {}}
    return checkpoint.save(folder / "checkpoints", "step-0", groups, run_state.collect_state(tiny_run))


def damage_file(good_checkpoint: Path, folder: Path, name: str, content: bytes) -> Path:
    """The checkpoint with one file replaced, and a manifest that says so."""
    path = shutil.copytree(good_checkpoint, folder / "checkpoints" / "step-0")
    (path / name).write_bytes(content)
    manifest = read_json(path / MANIFEST)
    manifest["files"][name] = {"bytes": len(content), "sha256": hash_file(path / name)}
    write_json(path / MANIFEST, manifest)
    return path


def check_refusal(folder: Path, watcher: Watcher) -> None:
    """Going on from the folder's checkpoint is refused, as a trainer would go on."""
    before = peak()
    tiny_run = tiny.assemble_run(folder, tiny.job())

    def go_on() -> None:
        loaded, _ = newest_checkpoint.load_latest(folder / "checkpoints")
        assert loaded is not None
        run_state.restore(tiny_run, loaded)

    with watcher(folder), pytest.raises(CheckpointError) as caught:
        go_on()
    assert caught.value.action
    assert len(str(caught.value)) < 2000
    assert peak() - before < MOST
    assert not list(folder.rglob("canary"))


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_a_checkpoint(good_checkpoint: Path, tmp_path: Path, watcher: Watcher, case: str) -> None:
    damage_file(good_checkpoint, tmp_path, "model.safetensors", WEIGHTS[case](tmp_path / "canary"))
    check_refusal(tmp_path, watcher)


@pytest.mark.parametrize("case", STATES)
def test_the_state_of_a_checkpoint(good_checkpoint: Path, tmp_path: Path, watcher: Watcher, case: str) -> None:
    damage_file(good_checkpoint, tmp_path, "state.json", STATES[case])
    check_refusal(tmp_path, watcher)


@pytest.mark.parametrize("case", MANIFESTS)
def test_the_manifest_of_a_checkpoint(good_checkpoint: Path, tmp_path: Path, watcher: Watcher, case: str) -> None:
    path = shutil.copytree(good_checkpoint, tmp_path / "checkpoints" / "step-0")
    manifest = read_json(path / MANIFEST)
    (path / MANIFEST).write_text(json.dumps(MANIFESTS[case](manifest)))
    check_refusal(tmp_path, watcher)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_an_invalid_file(good_checkpoint: Path, tmp_path: Path, watcher: Watcher, kind: str) -> None:
    """A link to a secret with the right hash, a pipe that nobody writes to, a device without end."""
    path = shutil.copytree(good_checkpoint, tmp_path / "checkpoints" / "step-0")
    weights, elsewhere = path / "model.safetensors", tmp_path / "elsewhere"
    weights.rename(elsewhere)
    {
        "link": lambda: weights.symlink_to(elsewhere),
        "pipe": lambda: os.mkfifo(weights),
        "folder": weights.mkdir,
        "device": lambda: weights.symlink_to("/dev/zero"),
    }[kind]()
    check_refusal(tmp_path, watcher)


@pytest.mark.parametrize("kind", ["model", "checkpoint", "pretrained"])
def test_weights_with_a_hole_that_no_memory_holds(good_checkpoint: Path, tmp_path: Path, kind: str) -> None:
    size = 8 << 40
    if kind == "checkpoint":
        path = shutil.copytree(good_checkpoint, tmp_path / "checkpoint") / "model.safetensors"
    else:
        path = model_folder(tmp_path) / "model.safetensors"
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    path.write_bytes(tensors(header))
    os.truncate(path, path.stat().st_size + size)
    if kind == "checkpoint":
        with pytest.raises(ValueError, match=r"8\.0 TiB"):
            safetensors_file.read(path)
    elif kind == "model":
        with pytest.raises(CheckpointError, check=saying("takes-memory-are-free", "8.0 TiB")):
            saved_model.load(path.parent)
    else:
        with pytest.raises(CheckpointError, check=saying("take-and-memory-limit-is", "8.0 TiB")):
            pretrained_folder.locate(tiny.job(), str(path.parent))


def test_the_malice_watcher_detects(tmp_path: Path, watcher: Watcher) -> None:
    """Without this the tests above would prove nothing."""
    for act in (
        lambda: pickle.loads(pickle_call(tmp_path / "canary")),
        lambda: (tmp_path.parent / "outside").write_text(""),
    ):
        with pytest.raises(AssertionError), watcher(tmp_path):
            act()
    assert (tmp_path / "canary").exists()
