"""Files made to do harm, and a watcher of what happens while they are read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from drivetrain.pretrained import model_config
from tests import tiny
from tests.edited_model import write_config

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
        # A module of a library that is imported for the first time would be compiled into its folder.
        keeps, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        self.allowed, self.seen = folder, []
        try:
            yield
        finally:
            self.allowed, sys.dont_write_bytecode = None, keeps
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


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def model_folder(folder: Path) -> Path:
    tiny_run = tiny.assemble_run(folder, tiny.job())
    path = folder / "model"
    path.mkdir()
    safetensors.torch.save_file(dict(tiny_run.model.state_dict()), path / "model.safetensors")
    config = {
        "format": model_config.FORMAT,
        "task": "image-classification",
        "builder": tiny_run.built_model.builder,
        "arguments": tiny_run.built_model.arguments,
        "heads": [asdict(head) for head in tiny_run.dataset.heads.values()],
        "preprocessing": {
            "kind": "images",
            **tiny_run.dataset.preprocessing,
            **{"classes": ["a", "b", "c"], "low": 0.0, "high": 255.0, "mean": [0.5], "std": [0.2]},
            **{"fit": "crop", "interpolation": "bilinear", "crop_share": 1.0},
            **{"path_column": "path", "label_column": "label"},
        },
        "trained": {},
    }
    write_config(path, config)
    return path
