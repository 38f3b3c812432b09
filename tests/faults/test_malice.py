"""Files made to do harm: checkpoints, weights, arrays. Each is refused by a reason; nothing of it runs, nothing is
written elsewhere, and none takes more memory than it is long.

What happens is watched from below: an audit hook sees every program, socket, import by pickle and opening of a file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from drivetrain.data.images import npz_images
from drivetrain.data.images.image_targets import LabelForm
from drivetrain.errors import CheckpointError, DataError, DrivetrainError, SpecError
from drivetrain.models import safetensors_file, saved_model
from drivetrain.pretrained import families, model_config
from drivetrain.pretrained import folder as pretrained_folder
from drivetrain.system.files import hash_file, read_json, write_json
from drivetrain.training.checkpoints import checkpoint, run_state
from drivetrain.training.checkpoints.manifest import MANIFEST
from tests import newest_checkpoint, tiny
from tests.edited_model import write_config
from tests.messages import saying

MOST = 500 << 20
"""Bytes of memory that a refusal may take."""
RUNS = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "pickle.find_class",
    *("socket.connect", "socket.getaddrinfo"),
    "ctypes.dlopen",
    "webbrowser.open",
    "shutil.unpack_archive",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watcher:
    """What code of this process did while it was watched; a hook can never be taken out again, so it sleeps."""

    def __init__(self) -> None:
        self.allowed: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if event in RUNS and args != ("libc.so.6",):  # it is loaded already, and libraries ask for it once more
            self.seen.append(f"{event} {args}"[:200])
        if event == "open" and args[2] & WRITES and not str(args[0]).startswith((str(self.allowed), "/dev/null")):
            self.seen.append(f"writes {args[0]}")

    @contextlib.contextmanager
    def __call__(self, folder: Path) -> Iterator[None]:
        self.allowed, self.seen = folder, []
        try:
            yield
        finally:
            self.allowed = None
        assert self.seen == []


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    return Watcher()


class Calls:
    """Pickled, it is a call of a function."""

    def __init__(self, function: Any, *arguments: str) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def tensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file from its header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def make_header(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def pickle_call(canary: Path) -> bytes:
    return pickle.dumps(Calls(os.system, f"touch {canary}"))


def zip_weights(canary: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": Calls(os.system, f"touch {canary}")}, buffer)
    return buffer.getvalue()


WEIGHTS: dict[str, Callable[[Path], bytes]] = {
    "a pickle": pickle_call,
    "a checkpoint of torch": zip_weights,
    "a header as long as memory": lambda canary: tensors(b"{}", length=2**63 - 1),
    "a header longer than the file": lambda canary: tensors(make_header(), b"\0" * 8, length=10**6),
    "a header of 90 MB": lambda canary: tensors(b'{"__metadata__":{"a":"' + b"x" * (90 << 20) + b'"}}'),
    "a header of many tensors": lambda canary: tensors(
        {f"t{i}": make_header(shape=[0], data_offsets=[0, 0])["w"] for i in range(300_000)}
    ),
    "a shape beyond numbers": lambda canary: tensors(make_header(shape=[2**62, 2**62]), b"\0" * 8),
    "a tensor of a petabyte": lambda canary: tensors(make_header(shape=[2**48], data_offsets=[0, 2**50]), b"\0" * 8),
    "a negative shape": lambda canary: tensors(make_header(shape=[-2]), b"\0" * 8),
    "offsets that overlap": lambda canary: tensors(
        {**make_header(), "v": make_header(data_offsets=[4, 12])["w"]}, b"\0" * 12
    ),
    "offsets that go back": lambda canary: tensors(make_header(data_offsets=[8, 0]), b"\0" * 8),
    "bytes behind the end": lambda canary: tensors(make_header(), b"\0" * 99),
    "a type that is none": lambda canary: tensors(make_header(dtype="object"), b"\0" * 8),
    "no JSON": lambda canary: tensors(b"{'w': __import__('os').system('true')}"),
    "JSON of no end": lambda canary: tensors(b'{"w":' + b"[" * 10**6),
    "a list": lambda canary: tensors([1, 2]),
    "thirty thousand tensors": lambda canary: tensors(
        {f"t{i}": make_header(shape=[0], data_offsets=[0, 0])["w"] for i in range(30_000)}
    ),
    "nothing": lambda canary: b"",
    "seven bytes": lambda canary: b"\x08\0\0\0\0\0\0",
}
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


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


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


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_a_model_folder(tmp_path: Path, watcher: Watcher, case: str) -> None:
    folder = model_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(WEIGHTS[case](tmp_path / "canary"))
    before = peak()
    with watcher(tmp_path), pytest.raises(DrivetrainError):
        saved_model.load(folder)
    assert peak() - before < MOST
    assert not (tmp_path / "canary").exists()


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


def model_folder(folder: Path) -> Path:
    tiny_run = tiny.assemble_run(folder, tiny.job())
    path = folder / "model"
    path.mkdir()
    safetensors.torch.save_file(dict(tiny_run.model.state_dict()), path / "model.safetensors")
    config = {
        "format": model_config.FORMAT,
        "task": "image-classification",
        "builder": tiny_run.network.builder,
        "arguments": tiny_run.network.arguments,
        "heads": [asdict(head) for head in tiny_run.dataset.heads.values()],
        "preprocessing": {
            "kind": "images",
            **tiny_run.dataset.preprocessing,
            **{"classes": ["a", "b", "c"], "low": 0.0, "high": 255.0, "mean": [0.5], "std": [0.2]},
            **{"path_column": "path", "label_column": "label"},
        },
        "trained": {},
    }
    write_config(path, config)
    return path


def test_the_model_folder_is_good_before_it_is_made_bad(tmp_path: Path, watcher: Watcher) -> None:
    folder = model_folder(tmp_path)
    with watcher(tmp_path):
        assert saved_model.load(folder).task == "image-classification"


BUILDERS: dict[str, dict[str, Any]] = {
    "a builder by its module": {"builder": "os.system", "arguments": {"command": "touch canary"}},
    "a builder with a path": {"builder": "../../evil", "arguments": {}},
    "another argument": {"arguments": {"__class__": "os.system"}},
    "a network of a petabyte": {"arguments": {"width": 2**40}},
    "a network of a gigabyte": {"arguments": {"width": 1000}},
    "code of somebody's own": {
        "builder": "own",
        "code": {"file": "evil.py"},
        "arguments": {"file": "evil.py", "factory": "build", "arguments": {}, "inputs": []},
    },
}


@pytest.mark.parametrize("case", BUILDERS)
def test_the_configuration_of_a_model_folder(tmp_path: Path, watcher: Watcher, case: str) -> None:
    folder = model_folder(tmp_path)
    (folder / "code").mkdir()
    (folder / "code" / "evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    config = read_json(folder / "config.json")
    changed = BUILDERS[case]
    write_config(
        folder,
        config
        | changed
        | {"arguments": (config["arguments"] if "builder" not in changed else {}) | changed["arguments"]},
    )
    before = peak()
    with watcher(tmp_path), pytest.raises(CheckpointError):
        saved_model.load(folder)
    assert peak() - before < MOST
    assert not (tmp_path / "canary").exists()


ELSEWHERE: dict[str, dict[str, Any]] = {
    "a pickle for timm": {
        "model_type": "timm_wrapper",
        "architecture": "resnet18",
        "model_args": {"checkpoint_path": "x"},
    },
    "a network of timm in another": {"model_type": "dpt", "backbone_config": {"model_type": "timm_backbone"}},
    "a network of the hub in another": {"model_type": "dpt", "use_pretrained_backbone": True, "backbone": "a/b"},
    "attention from the hub": {"model_type": "vit", "attn_implementation": "a/b"},
    "attention from the hub by its other name": {"model_type": "vit", "_attn_implementation": "flash_attention_2|a/b"},
    "a network of timm by default": {"model_type": "detr"},
    "a network of timm in a folder": {"model_type": "detr", "backbone": "local-dir:/etc"},
}
NAMING_BACKBONES = (
    *("dpt", "upernet", "maskformer", "mask2former", "oneformer", "omdet-turbo", "rt_detr", "zoedepth", "vitmatte"),
    *(
        "tvp",
        "depth_anything",
        "grounding-dino",
        "deformable_detr",
        "conditional_detr",
        "dab-detr",
        "d_fine",
        "rf_detr",
    ),
)
"""Families whose configuration may name another network by `backbone` alone."""
ELSEWHERE |= {f"another network in {family}": {"model_type": family, "backbone": "a/b"} for family in NAMING_BACKBONES}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_configuration_that_would_load_from_elsewhere(tmp_path: Path, watcher: Watcher, case: str) -> None:
    """Of a model folder and of a pretrained network: neither a file of the host nor the hub is opened for it."""
    folder = model_folder(tmp_path)
    config = read_json(folder / "config.json")
    arguments = {"config": ELSEWHERE[case], "pooling": "cls", "dropout": 0.0}
    for builder, outputs in (("vision", {"classes": 3, "width": 8}), ("texts", {"outputs": {"": 3}})):
        write_config(folder, config | {"builder": builder, "arguments": arguments | outputs})
        with watcher(tmp_path), pytest.raises(CheckpointError, check=saying("load-something-elsewhere")):
            saved_model.load(folder)
    write_json(folder / "config.json", ELSEWHERE[case])
    with watcher(tmp_path), pytest.raises(SpecError, check=saying("load-something-elsewhere")):
        pretrained_folder.find(tiny.job(), str(folder))


@pytest.mark.parametrize("family", [*NAMING_BACKBONES, "bert"])
def test_a_local_folder_asks_no_hub_even_for_an_unknown_entry(
    tmp_path: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(families, "find_external_entry", lambda config: "")
    write_json(tmp_path / "config.json", {"model_type": family, "backbone": "somebody/else"})
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with watcher(tmp_path), pytest.raises(SpecError):
        pretrained_folder.find(tiny.job(), str(tmp_path)).network()


@pytest.mark.parametrize("name", ["hf-hub:a/b", "local-dir:/etc"])
def test_a_network_of_timm_that_is_an_address(tmp_path: Path, watcher: Watcher, name: str) -> None:
    folder = model_folder(tmp_path)
    config = read_json(folder / "config.json")
    arguments = {"name": name, "classes": 3, "channels": 1, "image_size": 8, "dropout": 0.0}
    write_config(folder, config | {"builder": "timm", "arguments": arguments})
    with watcher(tmp_path), pytest.raises(CheckpointError, check=saying("is-not-name-of-architecture")):
        saved_model.load(folder)


def array(shape: tuple[int, ...], kind: str = "|u1", data: bytes = b"") -> bytes:
    """An .npy whose header says what its data need not hold."""
    buffer = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + data


def objects(canary: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Calls(os.system, f"touch {canary}")], dtype=object), allow_pickle=True)
    return buffer.getvalue()


ARCHIVES: dict[str, Callable[[Path], dict[str, bytes]]] = {
    "objects": lambda canary: {"images.npy": objects(canary), "labels.npy": array((1,), data=b"\0")},
    "an array of a petabyte": lambda canary: {
        "images.npy": array((2**50, 8, 8)),
        "labels.npy": array((1,), data=b"\0"),
    },
    "an array of no end": lambda canary: {"images.npy": array((2**62, 2**62)), "labels.npy": array((1,), data=b"\0")},
    "a header that is code": lambda canary: {
        "images.npy": array((1, 8, 8), data=b"\0" * 64).replace(b"'|u1'", b"exit() "),
        "labels.npy": array((1,), data=b"\0"),
    },
    "names that lead outside": lambda canary: {"../outside.npy": array((1,), data=b"\0"), "/tmp/outside.npy": b""},
    "no arrays": lambda canary: {"images": b"", "labels": b"x"},
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_of_arrays(tmp_path: Path, watcher: Watcher, case: str) -> None:
    """Nothing is ever unpacked: members are read where they lie."""
    with zipfile.ZipFile(tmp_path / "images.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in ARCHIVES[case](tmp_path / "canary").items():
            file.writestr(name, content)
    before = peak()
    with watcher(tmp_path), pytest.raises(DataError) as caught:
        npz_images.read(tmp_path / "images.npz", "data.train", LabelForm("class", ("label",)))
    assert "data.train" in str(caught.value)
    assert peak() - before < MOST
    assert [path.name for path in tmp_path.iterdir()] == ["images.npz"]


def test_the_malice_watcher_detects(tmp_path: Path, watcher: Watcher) -> None:
    """Without this the tests above would prove nothing."""
    for act in (
        lambda: pickle.loads(pickle_call(tmp_path / "canary")),
        lambda: (tmp_path.parent / "outside").write_text(""),
    ):
        with pytest.raises(AssertionError), watcher(tmp_path):
            act()
    assert (tmp_path / "canary").exists()
