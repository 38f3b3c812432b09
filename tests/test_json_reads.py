"""Every file of JSON is read by `parse_json`: bare `json.loads` lets a stranger's file end in a traceback."""

from __future__ import annotations

import ast
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from drivetrain.data import load_data
from drivetrain.errors import DataError, DrivetrainError, SpecError
from drivetrain.hardware import facts
from drivetrain.job_spec import load_job
from drivetrain.plan import plan
from drivetrain.system.files import parse_json, parse_row
from drivetrain.system.run_files import RunFiles
from tests.paths import PACKAGE

BETWEEN_OWN_PROCESSES = {
    "cli/doctor/docker_engine": "the answer of a client of Docker",
    "cli/doctor/snapshot": "a child of this process",
    "data/text/tokenizer": "text of a library",
    "job_spec/spec_source": "an argument of this process's parent",
    "launch/env_file": "the answer of a client of Docker",
    "tasks/image/expected_input": "text of a library",
    "storage/stored_copy": "a variable of this process's parent",
    "system/child_process": "a child of this process",
    "training/checkpoints/rank_checkpoints": "ranks of one run",
    "training/handshake": "ranks of one run",
    "training/start_checks": "ranks of one run",
}
"""Modules that parse what one of our own processes has just written, and no file."""
ODD: dict[str, bytes] = {
    "nested": b"[" * 200_000,
    "digits": b'{"splits": ' + b"9" * 6000 + b"}",
    "overflow": b'{"splits": 1e999}',
    "twice": b'{"splits": ["a"], "splits": ["b"]}',
    "utf-8": b'{"splits": "\xff"}',
    "utf-16": b"\xff\xfe",
    "cut": b'{"splits": [',
    "empty": b"",
    "list": b"[1]",
    "null": b"null",
    "text": b'"splits"',
    "other": b'{"splits": 5, "_data_files": [[]]}',
    "nothing": b'{"splits": [], "_data_files": []}',
    "names": b'{"splits": [{"a": 1}], "_data_files": [{"filename": 3}]}',
}


def list_bare_reads(code: str) -> Iterator[int]:
    """Yield the lines with `json.load` or `json.loads`, unless it undoes `json.dumps`."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        is_read = ast.unparse(node.func) in ("json.load", "json.loads")
        if is_read and not ast.unparse(node.args[0]).startswith("json.dumps("):
            yield node.lineno


def test_no_file_is_read_by_bare_json() -> None:
    bare_reads = [
        f"{name}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "json.load" in path.read_text(encoding="utf-8")
        and (name := path.relative_to(PACKAGE).with_suffix("").as_posix())
        not in {*BETWEEN_OWN_PROCESSES, "system/files"}
        for line in list_bare_reads(path.read_text(encoding="utf-8"))
    ]
    assert not bare_reads, (
        "use parse_json of drivetrain.system.files, and give its ValueError the error class of the caller"
    )
    assert list(list_bare_reads("json.loads(path.read_text())")) == [1]
    assert not list(list_bare_reads("json.loads(json.dumps(data))"))


@pytest.mark.parametrize(
    "content", [v for k, v in ODD.items() if k not in ("other", "nothing", "names")], ids=lambda v: ""
)
def test_what_is_wrong_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(content, dict)
    assert parse_row(content) is None


def test_what_json_allows_is_read() -> None:
    text = '{"a": [1, -2.5, 1e300, Infinity], "b": {"a": null}, "c": 1, "c": 1}'
    assert parse_json(text) == {"a": [1, -2.5, 1e300, float("inf")], "b": {"a": None}, "c": 1}
    assert parse_json("[1]", list) == [1]
    with pytest.raises(ValueError, match="it holds a list, not an object"):
        parse_json("[1]", dict)


def load_dataset(folder: Path, name: str) -> None:
    table = pa.table({"a": [i % 7 for i in range(120)], "y": ["pq"[i % 2] for i in range(120)]})
    parquet.write_table(table, folder / "train.parquet")
    (folder / "j.yaml").write_text(
        "name: f\ntask: tabular-classification\ndata: {train: ., target: y, validation: 0.25}\n"
    )
    load_data.load(load_job.load(folder / "j.yaml"))


def load_metadata(folder: Path, key: str) -> None:
    table = pa.table({"a": [i % 7 for i in range(120)], "y": ["pq"[i % 2] for i in range(120)]})
    table = table.replace_schema_metadata({key.encode(): (folder / key).read_bytes()})
    parquet.write_table(table, folder / "train.parquet")
    (folder / "j.yaml").write_text(
        "name: f\ntask: tabular-classification\ndata: {train: train.parquet, target: y, validation: 0.25}\n"
    )
    assert len(load_data.load(load_job.load(folder / "j.yaml")).train) == 90


READERS: dict[str, tuple[str, Callable[[Path, str], object], type[DrivetrainError] | None]] = {
    "splits of save_to_disk": ("dataset_dict.json", load_dataset, DataError),
    "files of save_to_disk": ("state.json", load_dataset, DataError),
    "index of pandas": ("pandas", load_metadata, None),
    "class names of datasets": ("huggingface", load_metadata, None),
    "recorded machine": ("m.json", lambda folder, name: facts.read_hardware(folder / name), SpecError),
    "plan": ("plan.json", lambda folder, name: plan.load(folder / name), SpecError),
}


@pytest.mark.parametrize(("name", "read", "error"), READERS.values(), ids=READERS)
def test_odd_files_end_in_the_error_of_their_reader(
    tmp_path: Path, name: str, read: Callable[[Path, str], object], error: type[DrivetrainError] | None
) -> None:
    for number, content in enumerate(ODD.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(content)
        if error is None:
            read(folder, name)
            continue
        with pytest.raises(error) as raised:
            read(folder, name)
        assert all((raised.value.given, raised.value.possible, raised.value.action))
        assert name in raised.value.given


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    """Each read asked for 256 MiB, which a limit of the address space refuses."""
    (tmp_path / "state.json").write_text(json.dumps({"status": "done"}))
    run = RunFiles(tmp_path)
    reads: list[Callable[[str], Any]] = [run.read_json, run.read_object, run.read_bytes, run.read_text]
    for read in reads:
        tracemalloc.start()
        read("state.json")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20
