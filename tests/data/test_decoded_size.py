"""Small files that stand for more than fits into memory are refused before they take more memory than is free."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import ipc, parquet

from drivetrain.data import decoded_size
from drivetrain.data.formats import npz_file, table_file
from drivetrain.errors import DataError
from drivetrain.pretrained import hub_dataset_files
from tests.messages import saying, says

MIB = 1 << 20


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_size, "free_memory", lambda: 8 * MIB)


def header(shape: str, kind: str = "<f4") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def write_npz(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def array(path: Path, name: str = "x") -> np.ndarray:
    with npz_file.open_npz(path) as file:
        return npz_file.member(file, name, path, "data.train")


def test_free_memory_is_a_number_of_bytes_of_this_machine() -> None:
    assert 0 < decoded_size.free_memory() < 1 << 50


@pytest.mark.parametrize(
    "shape",
    ["(16777216,)", "(4294967296, 4294967296)", f"({1 << 50},)", "(-16777216,)"],
    ids=["large", "overflow", "2^50", "negative"],
)
@pytest.mark.usefixtures("little_memory")
def test_an_array_is_refused_by_what_its_header_declares(tmp_path: Path, shape: str) -> None:
    path = write_npz(tmp_path / "a.npz", x=header(shape))
    with pytest.raises(DataError, match=r"data.train: array `x` of .* takes .* in memory") as caught:
        array(path)
    assert "8 MiB" in caught.value.possible
    assert "limits.memory" in caught.value.action


@pytest.mark.usefixtures("little_memory")
def test_zeros_that_are_packed_a_thousand_times_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, x=np.zeros((9, MIB), np.uint8))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(DataError, check=saying("takes-mib-memory", 9)):
        array(path)


@pytest.mark.usefixtures("little_memory")
def test_an_array_that_fits_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.ones((7, MIB), np.uint8))
    assert int(array(tmp_path / "a.npz").sum()) == 7 * MIB


@pytest.mark.parametrize("kind", ["S9000000", "U3000000"], ids=["bytes", "text"])
@pytest.mark.usefixtures("little_memory")
def test_wide_texts_count(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="in memory"):
        array(write_npz(tmp_path / "a.npz", x=header("(1,)", f"|{kind}" if kind[0] == "S" else f"<{kind}")))


def test_a_header_of_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30) + b" " * (4 * MIB)
    with pytest.raises(ValueError, match="header"):
        array(write_npz(tmp_path / "a.npz", x=long))


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_compressions_that_numpy_does_not_write_are_refused(tmp_path: Path, compression: int) -> None:
    with pytest.raises(ValueError, match="numpy does not write"):
        array(write_npz(tmp_path / "a.npz", compression, x=header("(1,)") + bytes(4)))


def test_a_member_that_is_damaged_or_nested_is_no_traceback(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.arange(100_000))
    content = bytearray(buffer.getvalue())
    content[2000:4000] = bytes(2000)
    (tmp_path / "a.npz").write_bytes(content)
    for path in (tmp_path / "a.npz", write_npz(tmp_path / "b.npz", x=header("(" * 3000))):
        with pytest.raises((ValueError, zipfile.BadZipFile)):
            array(path)


def test_one_array_with_the_name_of_many_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(header(f"({1 << 50},)"))
    with pytest.raises(ValueError, match=r"not an \.npz"):
        array(tmp_path / "a.npz")


def dictionary_bomb(path: Path, rows: int, text: str = "x" * MIB, *, first: int = 0) -> None:
    """A text that many rows share, which is in the file once; `first` rows before them are short."""
    codes = pyarrow.array([0] * first + [1] * rows, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["short", text]))
    table = pyarrow.table({"text": column, "label": pyarrow.array(["a"] * (first + rows))})
    parquet.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 30)


def column(values: object, path: Path, **options: object) -> None:
    parquet.write_table(pyarrow.table({"text": values}), path, compression="zstd", **options)


MAP = pyarrow.map_(pyarrow.string(), pyarrow.string())
BOMBS = {
    "one-text": lambda path: dictionary_bomb(path, 40),
    "one-text-late": lambda path: dictionary_bomb(path, 40, first=5000),
    "packed": lambda path: column(["x" * MIB] * 40, path, use_dictionary=False),
    "numbers": lambda path: column(pyarrow.array(np.zeros(3 * MIB, np.int64)), path),
    "list": lambda path: column([[], ["x" * MIB] * 40], path, dictionary_pagesize_limit=1 << 30),
    "bytes": lambda path: column([b"x" * MIB] * 40, path, dictionary_pagesize_limit=1 << 30),
    "short-texts": lambda path: column([{"text": "x" * 1500}] * 100_000, path),
    "struct": lambda path: column([{"bytes": b"x" * MIB}] * 40, path, dictionary_pagesize_limit=1 << 30),
    "prefixes": lambda path: column(
        ["x" * MIB] * 40, path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}
    ),
    "views": lambda path: column(pyarrow.array(["x" * MIB] * 40, pyarrow.string_view()), path),
    "map": lambda path: column(pyarrow.array([[("key", "x" * MIB)]] * 400, MAP), path),
    "keys": lambda path: column(pyarrow.array([[("x" * MIB, "item")]] * 400, MAP), path),
    "map-in-struct": lambda path: column(
        pyarrow.array([{"map": [("key", "x" * MIB)]}] * 400, pyarrow.struct([("map", MAP)])), path
    ),
    "fixed-size-list": lambda path: column(
        pyarrow.array([["x" * MIB]] * 400, pyarrow.list_(pyarrow.string(), 1)), path
    ),
    "list-view": lambda path: column(pyarrow.array([["x" * MIB]] * 400, pyarrow.list_view(pyarrow.string())), path),
    "extension": lambda path: column(pyarrow.array(["x" * MIB] * 400).cast(pyarrow.json_()), path),
    "large-list": lambda path: column(pyarrow.array([["x" * MIB] * 40], pyarrow.large_list(pyarrow.string())), path),
}


@pytest.mark.parametrize("kind", list(BOMBS))
@pytest.mark.usefixtures("little_memory")
def test_a_parquet_file_of_kilobytes_that_unpacks_to_more_than_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bomb.parquet"
    BOMBS[kind](path)
    assert path.stat().st_size < 1 << 16
    with pytest.raises(DataError, match=r"data\.train: .*bomb\.parquet.* in memory") as caught:
        table_file.read(path, "data.train")
    assert says(caught.value.possible, "memory-that-is-free-here")


@pytest.mark.usefixtures("little_memory")
def test_the_first_rows_of_a_large_parquet_file_are_read(tmp_path: Path) -> None:
    dictionary_bomb(tmp_path / "a.parquet", 40, first=5000)
    head, rows = table_file.head(tmp_path / "a.parquet", "path", 1000)
    assert (len(head), rows) == (1000, 5040)


@pytest.mark.usefixtures("little_memory")
def test_parquet_tables_that_fit_are_read_as_before(tmp_path: Path) -> None:
    content = pyarrow.table(
        {
            "text": [f"text {row}" for row in range(30_000)],
            "tags": [["a", "b"]] * 30_000,
            "cell": [{"bytes": b"\xff", "path": None}] * 30_000,
            "a.b": pyarrow.array(range(30_000)),
        }
    )
    parquet.write_table(content, tmp_path / "a.parquet", row_group_size=7000)
    assert table_file.read(tmp_path / "a.parquet", "data.train").equals(content)
    two = table_file.read(tmp_path / "a.parquet", "data.train", required={"a.b": "x", "text": "y"}, only=True)
    assert two.equals(content.select(["text", "a.b"]))


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.usefixtures("little_memory")
def test_compressed_arrow_files_count_as_unpacked(tmp_path: Path, form: str) -> None:
    writer = {"stream": ipc.new_stream, "file": ipc.new_file}[form]
    for name, rows in (("small", 5), ("large", 40)):
        table = pyarrow.table({"text": ["x" * MIB] * rows})
        options = ipc.IpcWriteOptions(compression="zstd")
        with writer(tmp_path / f"{name}.arrow", table.schema, options=options) as file:
            file.write_table(table)
    assert len(table_file.read(tmp_path / "small.arrow", "data.train")) == 5
    with pytest.raises(DataError, match="in memory"):
        table_file.read(tmp_path / "large.arrow", "data.train")


@pytest.mark.usefixtures("little_memory")
def test_mapped_arrow_files_may_be_larger_than_memory(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["x" * MIB] * 20})
    with ipc.new_stream(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    assert len(table_file.read(tmp_path / "a.arrow", "data.train")) == 20


@pytest.mark.parametrize(
    "values",
    [
        pyarrow.nulls(1 << 30),
        pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 40, pyarrow.int32()), ["x" * MIB]),
    ],
    ids=["nothing", "dictionary"],
)
@pytest.mark.usefixtures("little_memory")
def test_arrow_files_that_become_larger_than_they_are(tmp_path: Path, values: object) -> None:
    table = pyarrow.table({"text": values})
    with ipc.new_stream(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    with pytest.raises(DataError, match="in memory"):
        table_file.read(tmp_path / "a.arrow", "data.train")


@pytest.mark.usefixtures("little_memory")
def test_names_of_classes_count_for_every_row(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["x" * MIB, "\ud800"]}}}}
    for name, number in (("many", 0), ("odd", 1)):
        table = pyarrow.table({"label": [number] * 40})
        parquet.write_table(
            table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / f"{name}.parquet"
        )
    assert table_file.read(tmp_path / "odd.parquet", "data.train")["label"][0].as_py() == "?"
    with pytest.raises(DataError, check=saying("names-of-its-classes")):
        table_file.read(tmp_path / "many.parquet", "data.train")


@pytest.mark.usefixtures("little_memory")
def test_keys_of_single_lines_are_columns_of_all(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text("".join(f'{{"k{line}": 1}}\n' for line in range(2000)))
    for read in (table_file.read, lambda path, key: table_file.head(path, key, 1900)):
        with pytest.raises(DataError, match=r"data\.train: .*keys\.jsonl takes .* in memory"):
            read(path, "data.train")
    path.write_text("".join(f'{{"text": "a \\"b\\": {line}", "label": "c"}}\n' for line in range(9000)))
    assert len(table_file.read(path, "data.train")) == 9000


def test_a_readme_whose_keys_would_be_merged_without_end() -> None:
    merged = "\n".join(f"c{level}: &c{level} {{<<: [{', '.join([f'*c{level - 1}'] * 9)}]}}" for level in range(1, 12))
    assert hub_dataset_files.read_header(f"---\nc0: &c0 {{a: 1}}\n{merged}\n---\n") == {}
