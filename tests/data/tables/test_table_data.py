"""Tables as a data set: types, empty cells, categories, split, scale, and new rows."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow
import pyarrow.compute
import pytest
import torch
from pyarrow import parquet

from drivetrain.data import load_data
from drivetrain.data.dataset import Split
from drivetrain.data.load_data import load
from drivetrain.data.scales import format_number
from drivetrain.data.stateless_random import Ids
from drivetrain.data.tables.table_data import TableSplit
from drivetrain.errors import DataError
from drivetrain.job.tables import MlpSpec
from tests.data.tables.table_rows import job, make_mixed_rows, write_rows
from tests.messages import begins_with, ends_with, saying, says, says_only

torch.set_num_threads(1)


def gather_all(split: Split) -> tuple[torch.Tensor, ...]:
    assert isinstance(split, TableSplit)
    return split.gather(np.arange(len(split)))


def rows_of(split: Split) -> Ids:
    """The rows of the file that a split has."""
    assert isinstance(split, TableSplit)
    return split.rows


def column(data: Any, name: str) -> dict[str, Any]:
    columns = [c for c in (*data.preprocessing["numeric"], *data.preprocessing["categorical"]) if c["name"] == name]
    assert len(columns) == 1
    return dict(columns[0])


def test_types_and_shapes(tmp_path: Path) -> None:
    data = load(job(write_rows(tmp_path, make_mixed_rows()), categorical=["code"]))
    assert [c["name"] for c in data.preprocessing["numeric"]] == ["size", "count", "new"]
    assert [c["name"] for c in data.preprocessing["categorical"]] == ["colour", "code"]
    numbers, categories = data.train.gather(np.array([3, 0, 5]))
    assert (numbers.shape, numbers.dtype) == ((3, 4), torch.float32)
    assert (categories.shape, categories.dtype) == ((3, 2), torch.int32)
    assert data.heads[""].classes == ("big", "small")
    assert "60 training and 20 validation rows" in data.notes
    assert says_only(data.notes, "numeric-size-count-new", 3, 2)


def test_statistics_are_those_of_the_training_rows(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    data = load(job(write_rows(tmp_path, rows)))
    size = np.array(rows["size"].to_pylist(), dtype=float)[rows_of(data.train)]
    known_sizes = size[~np.isnan(size)]
    assert column(data, "size") == {
        "name": "size",
        "mean": pytest.approx(known_sizes.mean()),
        "std": pytest.approx(known_sizes.std()),
        "median": pytest.approx(np.median(known_sizes)),
        "missing": True,
        "edges": ANY,
        "low": known_sizes.min(),
        "high": known_sizes.max(),
    }
    scaled = (known_sizes - known_sizes.mean()) / known_sizes.std()
    edges = np.array(column(data, "size")["edges"])
    assert len(edges) <= 33
    np.testing.assert_allclose(edges[[0, -1]], [scaled.min(), scaled.max()], rtol=1e-5)
    shares = np.histogram(scaled.astype(np.float32), edges.astype(np.float32))[0] / len(scaled)
    assert shares.max() < 3 / 32  # bins hold equally many training rows, as far as whole rows allow
    numbers = gather_all(data.train)[0].numpy()
    filled_sizes = np.where(np.isnan(size), np.median(known_sizes), size)
    np.testing.assert_allclose(numbers[:, 0], (filled_sizes - known_sizes.mean()) / known_sizes.std(), atol=1e-5)
    np.testing.assert_array_equal(numbers[:, 1], np.isnan(size))


def test_numbers_with_few_values_have_few_bins_and_those_with_two_have_none(tmp_path: Path) -> None:
    path = write_rows(tmp_path, make_mixed_rows(200) | {"few": np.arange(200) % 3, "flag": np.arange(200) % 2})
    data = load(job(path))
    assert len(column(data, "few")["edges"]) == 3
    assert column(data, "flag")["edges"] == ()
    plain = load(job(path).model_copy(update={"model": MlpSpec(bins=0)}))
    assert {number["edges"] for number in plain.preprocessing["numeric"]} == {()}
    assert torch.equal(gather_all(plain.train)[0], gather_all(data.train)[0])


def test_validation_rows_do_not_change_the_preprocessing(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    first = load(job(write_rows(tmp_path, rows)))
    is_validation = np.isin(np.arange(80), rows_of(first.validation))
    rows["count"] = np.where(is_validation, 10_000, rows["count"])
    rows["colour"] = pyarrow.array(np.where(is_validation, "violet", rows["colour"].to_pylist()).tolist())
    second = load(job(write_rows(tmp_path, rows)))
    assert second.preprocessing == first.preprocessing
    assert (gather_all(second.validation)[1][:, 0] == 0).all()
    assert says([note for note in second.notes if "violet" in note], "colour-categories-training-data")


def test_categories_have_their_place_and_empty_cells_too(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    data = load(job(write_rows(tmp_path, rows)))
    assert column(data, "colour") == {"name": "colour", "values": ["blue", "green", "red"], "missing": True}
    expected = [
        {None: 1, "blue": 2, "green": 3, "red": 4}[rows["colour"][int(row)].as_py()] for row in rows_of(data.train)
    ]
    assert gather_all(data.train)[1][:, 0].tolist() == expected


def test_the_split_is_stratified_and_a_function_of_the_seed(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    rows["y"] = np.where(np.arange(80) < 8, "rare", "usual")
    path = write_rows(tmp_path, rows)
    data, same_seed, other_seed = (load(job(path, seed=seed)) for seed in (1, 1, 2))
    assert Counter(data.validation.targets[""].tolist()) == {0: 2, 1: 18}
    assert sorted([*rows_of(data.train), *rows_of(data.validation)]) == list(range(80))
    np.testing.assert_array_equal(rows_of(data.train), rows_of(same_seed.train))
    assert rows_of(data.train).tolist() != rows_of(other_seed.train).tolist()


def test_columns_with_one_value_are_left_out(tmp_path: Path) -> None:
    rows = make_mixed_rows() | {"same": np.full(80, 0.1), "void": pyarrow.nulls(80), "one": ["x"] * 80}
    data = load(job(write_rows(tmp_path, rows)))
    names = [c["name"] for c in (*data.preprocessing["numeric"], *data.preprocessing["categorical"])]
    assert names == ["size", "count", "code", "new", "colour"]
    for name in ("same", "void", "one"):
        assert says_only(data.notes, "constant-training-rows-used", name)


def test_bad_rows_are_listed_and_left_out(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    rows["count"] = np.where(np.arange(80) == 7, np.inf, rows["count"])
    rows["y"] = [None if i == 11 else value for i, value in enumerate(rows["y"])]
    data = load(job(write_rows(tmp_path, rows)))
    assert "left out: a.parquet row 8: count is infinite" in data.notes
    assert "left out: a.parquet row 12: y is empty" in data.notes
    assert not {7, 11} & {*rows_of(data.train).tolist(), *rows_of(data.validation).tolist()}
    assert data.train.title(0) == f"a.parquet row {rows_of(data.train)[0] + 1}"


def test_a_csv_reads_like_a_parquet(tmp_path: Path) -> None:
    from pyarrow import csv

    table = pyarrow.table(make_mixed_rows())
    csv.write_csv(table, tmp_path / "a.csv")
    one, other = load(job(write_rows(tmp_path, make_mixed_rows()))), load(job(tmp_path / "a.csv"))
    assert one.preprocessing == other.preprocessing
    assert all(torch.equal(a, b) for a, b in zip(gather_all(one.train), gather_all(other.train), strict=True))


def test_a_separate_validation_file(tmp_path: Path) -> None:
    train, validation_path = (
        write_rows(tmp_path, make_mixed_rows()),
        write_rows(tmp_path, make_mixed_rows(30), "own.parquet"),
    )
    data = load(job(train, validation=str(validation_path)))
    assert (len(data.train), len(data.validation)) == (80, 30)
    assert data.validation.title(4) == "own.parquet row 5"


def test_new_rows_are_prepared_as_validation_was(tmp_path: Path) -> None:
    path = write_rows(tmp_path, make_mixed_rows())
    data = load(job(path))
    preprocessing = json.loads(json.dumps(data.preprocessing))
    new = load_data.load_new([path], preprocessing, data.heads, labelled=True)
    for new_rows, validation_rows in zip(gather_all(new.split), gather_all(data.validation), strict=True):
        assert torch.equal(new_rows[torch.from_numpy(rows_of(data.validation))], validation_rows)
    assert torch.equal(new.split.targets[""][rows_of(data.validation)], data.validation.targets[""])


def test_new_rows_in_any_order_of_columns_without_targets(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    data = load(job(write_rows(tmp_path, rows)))
    shuffled = {name: rows[name] for name in ("new", "code", "colour", "count", "size")} | {"more": ["x"] * 80}
    rows["size"] = pyarrow.array([None] * 79 + [1e300])
    paths = [write_rows(tmp_path, shuffled, "one.parquet"), write_rows(tmp_path, rows, "two.parquet")]
    new = load_data.load_new(paths, data.preprocessing, data.heads, labelled=False)
    assert len(new.split) == 159
    assert new.split.title(81) == "two.parquet row 2"
    assert any("two.parquet row 80: size is infinite" in note for note in new.notes)
    assert new.split.targets == {}
    assert torch.equal(new.split.gather(rows_of(data.validation))[0], gather_all(data.validation)[0])


def test_a_new_label_is_an_error_and_a_new_empty_cell_is_noted(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    data = load(job(write_rows(tmp_path, rows)))
    rows["y"], rows["count"] = ["huge"] * 80, [None] + [5] * 79
    path = write_rows(tmp_path, rows, "new.parquet")
    new = load_data.load_new([path], data.preprocessing, data.heads, labelled=False)
    assert says(new.notes, "count-empty-rows-never", 1)
    with pytest.raises(DataError, check=saying("classes-training-data-4", "huge", 80)):
        load_data.load_new([path], data.preprocessing, data.heads, labelled=True)


def test_numbers_far_from_those_of_the_training_are_noted(tmp_path: Path) -> None:
    """Their class had a probability of 1.0, without a word."""
    rows = make_mixed_rows()
    data = load(job(write_rows(tmp_path, rows)))
    sizes = np.array(rows["size"], dtype=float)
    notes_by_factor = {}
    for factor in (1.0, 10.0, 1e6):
        rows["size"] = [*(sizes[:79]), np.nanmax(sizes) * factor]
        new = load_data.load_new(
            [write_rows(tmp_path, rows, "new.parquet")], data.preprocessing, data.heads, labelled=False
        )
        notes_by_factor[factor] = [note for note in new.notes if "is a guess" in note]
    assert [len(notes) for notes in notes_by_factor.values()] == [0, 1, 1]
    assert begins_with(notes_by_factor[10.0][0], "size-is-far-from", "new.parquet")
    assert begins_with(notes_by_factor[1e6][0], "size-is-in-row-far", "new.parquet")
    assert all("in row 80" in notes[0] for notes in (notes_by_factor[10.0], notes_by_factor[1e6]))


@pytest.mark.parametrize("every", [10, 3])
@pytest.mark.parametrize(("code", "is_noted"), [(-3.0, False), (-999999999.0, True), (1e30, True)])
def test_codes_leave_the_other_numbers_as_they_are(tmp_path: Path, code: float, is_noted: bool, every: int) -> None:
    """Beside -999999999 all other numbers of the column were the same for the network."""
    rows = make_mixed_rows()
    sizes = np.random.default_rng(0).normal(size=80)
    rows["size"] = np.where(np.arange(80) % every == 0, code, sizes)
    path = write_rows(tmp_path, rows)
    data = load(job(path))
    notes = [note for note in data.notes if "without such numbers" in note]
    assert len(notes) == is_noted
    if is_noted:
        row = every + 1
        assert begins_with(notes[0], "size-is-in-rows", format_number(code), f"row 1, row {row}, row {2 * row - 1}")
        assert ends_with(notes[0], "stand-for-no-value", format_number(code))
        missing = load(job(path, missing=[format_number(code)], bad_samples=0.5))
        assert not [note for note in missing.notes if "without such numbers" in note]
    scaled = gather_all(data.train)[0][:, [n["name"] for n in data.preprocessing["numeric"]].index("size")]
    assert len(scaled.unique()) > 0.6 * len(scaled)
    assert scaled.abs().max() <= 10
    new_data = load_data.load_new([path], data.preprocessing, data.heads, labelled=True)
    assert len([note for note in new_data.notes if "is a guess" in note]) == is_noted


def test_whole_numbers_that_are_rounded_are_noted(tmp_path: Path) -> None:
    """Identifiers of two classes were one number, and `constant in the training rows`."""
    rows = make_mixed_rows() | {"id": 2**53 + (np.arange(80) % 2)}
    assert says(load(job(write_rows(tmp_path, rows))).notes, "id-whole-numbers", "9,007")
    rows["id"] = rows["id"] // 2
    assert not any("whole numbers" in note for note in load(job(write_rows(tmp_path, rows))).notes)


def test_empty_cells_are_counted(tmp_path: Path) -> None:
    """A tenth of a column was filled without a word."""
    data = load(job(write_rows(tmp_path, make_mixed_rows())))
    # The second number of a row marks an empty size.
    share = float(gather_all(data.train)[0][:, 1].mean())
    (note,) = [note for note in data.notes if note.startswith("empty cells: ")]
    assert f"size {share:.1%}" in note
    assert "colour" in note
    rows = {name: values for name, values in make_mixed_rows().items() if name in ("count", "code", "new", "y")}
    assert not any("empty cells" in note for note in load(job(write_rows(tmp_path, rows))).notes)


def test_several_labels(tmp_path: Path) -> None:
    rows = make_mixed_rows() | {"late": np.arange(80) % 3 == 0, "broken": (np.arange(80) % 5 == 0).astype(int)}
    data = load(job(write_rows(tmp_path, rows), target=["late", "broken"], ignore=["y"]))
    head = data.heads[""]
    assert (head.classes, head.several) == (("late", "broken"), True)
    row = int(rows_of(data.train)[9])
    assert data.train.targets[""][9].tolist() == [float(row % 3 == 0), float(row % 5 == 0)]
    assert data.train.targets[""].dtype == torch.float32


def test_numbers_to_predict_are_scaled_by_the_training_rows(tmp_path: Path) -> None:
    rows = make_mixed_rows() | {"a": np.arange(80) * 2.0, "b": np.arange(80) ** 2}
    del rows["y"]
    data = load(job(write_rows(tmp_path, rows), "tabular-regression", target=["a", "b"]))
    head, train = data.heads[""], rows_of(data.train)
    assert head.columns == ("a", "b")
    assert head.mean == pytest.approx(((train * 2.0).mean(), (train**2.0).mean()))
    raw = data.validation.targets[""].double() * torch.tensor(head.std) + torch.tensor(head.mean)
    np.testing.assert_allclose(raw[:, 0], rows_of(data.validation) * 2.0, atol=1e-4)


def test_a_table_without_categories_and_one_without_numbers(tmp_path: Path) -> None:
    rows = make_mixed_rows()
    number_data = load(job(write_rows(tmp_path, rows), features=["size", "count"]))
    assert [x.shape[1] for x in gather_all(number_data.train)] == [3]
    assert number_data.mixable
    category_data = load(job(write_rows(tmp_path, rows), features=["colour"]))
    assert [x.dtype for x in gather_all(category_data.train)] == [torch.int32]
    assert not category_data.mixable


def test_memory_of_parsing_is_released(tmp_path: Path) -> None:
    """Arrow's allocator would keep several times the data for a next file that does not come."""
    memory_file = Path("/proc/self/statm")
    data = load(job(write_rows(tmp_path, make_mixed_rows(400_000))))
    resident_pages = int(memory_file.read_text().split()[1])
    pyarrow.default_memory_pool().release_unused()
    unreleased_bytes = (resident_pages - int(memory_file.read_text().split()[1])) * os.sysconf("SC_PAGE_SIZE")
    assert unreleased_bytes < 8 << 20
    assert len(data.train) > 100_000


def test_a_new_file_is_named_once_in_a_message(tmp_path: Path) -> None:
    """`new.csv: new.csv has no column` had the file as key, too."""
    path = tmp_path / "new.csv"
    path.write_text("b\n1\n")
    data = load(job(write_rows(tmp_path, make_mixed_rows())))
    with pytest.raises(DataError) as error:
        load_data.load_new([path], data.preprocessing, data.heads, labelled=False)
    assert str(error.value).startswith(f"data: {path} has no column ")


@pytest.mark.parametrize("odd", ["desconocido", "yes"])
def test_one_cell_that_is_no_truth_value_loses_its_row_alone(tmp_path: Path, odd: str) -> None:
    """The reader of CSV files takes the whole column for text then."""
    lines = [f"{i / 7},{'true' if i % 3 else 'False'},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["z,on,y", *lines]) + "\n")
    data = load(job(tmp_path / "a.csv"))
    new = ["0.5,true", "0.5,false", f"0.5,{odd}", "0.5,TRUE"]
    (tmp_path / "new.csv").write_text("\n".join(["z,on", *new]) + "\n")
    read = load_data.load_new([tmp_path / "new.csv"], data.preprocessing, data.heads, labelled=False)
    assert [read.split.title(i) for i in range(len(read.split))] == [f"new.csv row {row}" for row in (1, 2, 4)]
    assert [note for note in read.notes if f"new.csv row 3 (line 4): on is `{odd}`, not a number" in note]
    first, second, third = read.split.gather(np.arange(3))[0].numpy()
    np.testing.assert_array_equal(first, third)
    assert first[1] != second[1]


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.string_view()], ids=str)
def test_other_types_of_text_give_the_same_table(tmp_path: Path, kind: Any) -> None:
    rows = pyarrow.table(make_mixed_rows())
    parquet.write_table(rows, tmp_path / "a.parquet")
    other = rows
    for name in ("colour", "y"):
        other = other.set_column(other.column_names.index(name), name, other[name].cast(kind))
    parquet.write_table(other, tmp_path / "b.parquet")
    one, two = (load(job(tmp_path / name)) for name in ("a.parquet", "b.parquet"))
    assert one.preprocessing == two.preprocessing
    for plain_part, other_part in zip(gather_all(one.train), gather_all(two.train), strict=True):
        assert torch.equal(plain_part, other_part)
