"""Texts: tokenized once, padded to the longest of a batch, split without labels that only validation has."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from drivetrain.data import load_data
from drivetrain.data.dataset import NO_LABEL
from drivetrain.data.load_data import load
from drivetrain.data.text.corpus import TextSplit
from drivetrain.errors import DataError, SpecError
from drivetrain.job.text import TextJob
from drivetrain.training.evaluation import validation
from tests import reports, tiny
from tests.messages import get_message, saying, says, says_each, says_only


def splits(job: TextJob) -> tuple[TextSplit, TextSplit]:
    dataset = load(job)
    assert isinstance(dataset.train, TextSplit)
    assert isinstance(dataset.validation, TextSplit)
    return dataset.train, dataset.validation


def read_rows(path: Path) -> dict[int, list[str]]:
    """The rows of a CSV by number, the first below the header is 1."""
    with path.open(encoding="utf-8") as file:
        return dict(enumerate(list(csv.reader(file))[1:], start=1))


def test_every_text_keeps_its_labels(tmp_path: Path) -> None:
    rows = read_rows(reports.write_reports(tmp_path))
    dataset = load(reports.job(tmp_path))
    row_numbers = []
    for part in (dataset.train, dataset.validation):
        assert isinstance(part, TextSplit)
        for i in range(len(part)):
            number = int(part.table.row_numbers[part.rows[i]])
            labels = [head.classes[part.targets[name][i]] for name, head in dataset.heads.items()]
            assert labels == rows[number][1:]
            assert part.title(i).startswith(f"reports.csv row {number}: {rows[number][0][:60]}")
            row_numbers.append(number)
    assert sorted(row_numbers) == sorted(rows)


def test_heads_are_the_label_columns(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    labels = "{modo: 0.1, causa: {weight: 0.6, class_weights: balanced, label_smoothing: 0.1}, prioridad: 0.3}"
    dataset = load(reports.job(tmp_path, labels=labels))
    assert [(h.name, h.weight, h.class_weights, h.label_smoothing) for h in dataset.heads.values()] == [
        ("modo", 0.1, None, None),
        ("causa", 0.6, "balanced", 0.1),
        ("prioridad", 0.3, None, None),
    ]
    assert dataset.heads["prioridad"].classes == ("alta", "baja", "crítica", "media")
    assert not dataset.mixable


@pytest.mark.parametrize("labels", ["causa", "[causa]", "{causa: 0.6}"])
def test_a_single_label_column_has_plain_metrics(tmp_path: Path, labels: str) -> None:
    reports.write_reports(tmp_path)
    job = reports.job(tmp_path, labels=labels)
    dataset = load(job)
    assert list(dataset.heads) == list(dataset.train.targets) == [""]
    assert dataset.heads[""].weight == 1
    assert "validation/accuracy" in job.metrics()
    assert job.best() == "validation/f1"


def test_the_heaviest_of_several_columns_is_watched(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    job = reports.job(tmp_path)
    assert job.best() == "validation/causa/f1"
    assert any("chosen by validation/causa/f1" in note for note in load(job).notes)
    assert reports.job(tmp_path, labels="[modo, causa]").best() == "validation/modo/f1"


def test_a_batch_is_as_long_as_its_longest_text(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    train, _ = splits(reports.job(tmp_path))
    rows = np.array([5, 3, 40, 3])
    ids, mask = train.gather(rows)
    for i, row in enumerate(rows):
        start, end = train.tokens.offsets[row : row + 2]
        tokens = train.tokens.flat[start:end].tolist()
        filler = ids.shape[1] - len(tokens)
        assert ids[i].tolist() == tokens + [0] * filler
        assert mask[i].tolist() == [1] * len(tokens) + [0] * filler
    assert ids.shape[1] == train.lengths[rows].max()
    assert ids.dtype == mask.dtype == torch.int64


def test_long_texts_are_cut_and_keep_both_ends(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    full_split, _ = splits(reports.job(tmp_path, data=", max_length: 512"))
    dataset = load(reports.job(tmp_path, data=", max_length: 24"))
    cut_split = dataset.train
    assert isinstance(cut_split, TextSplit)
    assert np.array_equal(cut_split.lengths, np.minimum(full_split.lengths, 24))
    for row in range(len(cut_split)):
        ids, full_ids = (split.gather(np.array([row]))[0][0].tolist() for split in (cut_split, full_split))
        assert ids[:-1] == full_ids[: len(ids) - 1]
        assert ids[-1] == full_ids[-1]
    share = (full_split.lengths > 24).mean()
    assert says(dataset.notes, "max-length-set-job", 24, f"{share:.1%}")


def test_the_split_is_a_function_of_the_seed(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    first, same_seed, other_seed = (
        splits(reports.job(tmp_path, train_keys=f", seed: {seed}"))[1] for seed in (1, 1, 2)
    )
    assert np.array_equal(first.rows, same_seed.rows)
    assert not np.array_equal(first.rows, other_seed.rows)


def test_a_label_never_occurs_in_validation_alone(tmp_path: Path) -> None:
    """`modo` decides the split; each row has its own pair of other labels, so many would be in validation alone."""
    rows = [[f"texto {i}", "ab"[i % 2], f"c{i // 2}"] for i in range(80)]
    reports.write_table(tmp_path / "reports.csv", rows, "descripcion,modo,causa")
    dataset = load(reports.job(tmp_path, labels="[modo, causa]", data=", validation: 0.4"))
    label_sets = [set(part.targets["causa"].tolist()) for part in (dataset.train, dataset.validation)]
    assert label_sets[1] <= label_sets[0] == set(range(40))
    assert says(dataset.notes, "rows-used-training-since")


def test_rows_with_empty_cells_are_left_out_and_listed(tmp_path: Path) -> None:
    rows = [[f"texto {i}", "ab"[i % 2]] for i in range(60)]
    rows[2][0], rows[3][1], rows[7] = " ", "", ["", ""]
    reports.write_table(tmp_path / "reports.csv", rows)
    dataset = load(reports.job(tmp_path, labels="modo", data=", bad_samples: 0.1"))
    assert len(dataset.train) + len(dataset.validation) == 57
    assert says_only(dataset.notes, "samples-used-skipped-2", "data.train", 3, 60)
    omissions = [note.split("reports.csv ")[1] for note in dataset.notes if note.startswith("left out")]
    assert says_each(
        omissions,
        [
            "row 3 (line 4): descripcion is empty",
            "row 4 (line 5): modo is empty",
            get_message("row-line-descripcion-modo", 8, 9),
        ],
    )


def test_notes_report_duplicates_and_conversions(tmp_path: Path) -> None:
    rows = [["la bomba gotea", "Fuga" if i % 5 else "fuga"] for i in range(40)] + [["el eje vibra", "temblor"]]
    reports.write_table(tmp_path / "reports.csv", rows)
    notes = "\n".join(load(reports.job(tmp_path, labels="modo")).notes)
    for part in (
        '"modo": spellings that are probably the same, and are learned apart: Fuga/fuga',
        "with a single row, which is used for training: temblor",
        "4 of 4 validation texts are identical to training texts",
        "WordPiece tokens learned",
        "lower case, accents kept",
        "tokens per text: p50 ",
        "p95 ",
        "p99 ",
        "max ",
        "no text is cut",
        "padding: ",
    ):
        assert part in notes


def test_labels_are_as_written(tmp_path: Path) -> None:
    """Codes are no numbers: 007 stays 007, and classes that are numbers come in their order."""
    reports.write_table(tmp_path / "reports.csv", [[f"texto {i}", ["007", "10", " 2 "][i % 3]] for i in range(30)])
    assert load(reports.job(tmp_path, labels="modo")).heads[""].classes == ("2", "007", "10")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_new_texts_are_prepared_as_in_training(tmp_path: Path, suffix: str) -> None:
    from pyarrow import parquet
    from pyarrow.csv import read_csv

    source = reports.write_reports(tmp_path)
    dataset = load(
        reports.job(
            tmp_path, data=f", validation: reports.{suffix}, max_length: 32" if suffix == "csv" else ", max_length: 32"
        )
    )
    rows = read_csv(source)
    new = tmp_path / f"new.{suffix}"
    if suffix == "csv":
        new.write_bytes(source.read_bytes())
    elif suffix == "jsonl":
        new.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    else:
        parquet.write_table(rows, new)
    preprocessing = json.loads(json.dumps(dataset.preprocessing))
    new_data = load_data.load_new([new], preprocessing, dataset.heads, labelled=True)
    for part in (dataset.train, dataset.validation):
        assert isinstance(part, TextSplit)
        number = part.table.row_numbers[part.rows] - 1
        for old_tensor, new_tensor in zip(
            part.gather(np.arange(len(part))), new_data.split.gather(number), strict=True
        ):
            assert torch.equal(old_tensor, new_tensor)
        for name in dataset.heads:
            assert torch.equal(part.targets[name], new_data.split.targets[name][torch.from_numpy(number)])


def test_several_new_files_keep_their_titles(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    dataset = load(reports.job(tmp_path))
    first = reports.write_table(tmp_path / "uno.csv", [["la bomba gotea"], ["el motor vibra"]], "descripcion")
    second = reports.write_table(tmp_path / "dos.csv", [[""], ["se oye un chirrido"]], "descripcion")
    new_data = load_data.load_new([first, second], dataset.preprocessing, dataset.heads, labelled=False)
    titles = [new_data.split.title(i) for i in range(len(new_data.split))]
    assert titles == [
        "uno.csv row 1: la bomba gotea",
        "uno.csv row 2: el motor vibra",
        "dos.csv row 2: se oye un chirrido",
    ]
    assert new_data.split.targets == {}
    assert any("row 1 (line 2): descripcion is empty" in note for note in new_data.notes)


def test_new_files_without_texts_are_refused(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    dataset = load(reports.job(tmp_path))
    empty = reports.write_table(tmp_path / "new.csv", [[" "], ["  "]], "descripcion")
    with pytest.raises(DataError, check=saying("of-samples-cannot-be-used-2", 2, 2)):
        load_data.load_new([empty], dataset.preprocessing, dataset.heads, labelled=False)


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.string_view()], ids=str)
def test_other_types_of_text_give_the_same_tokens(tmp_path: Path, kind: pyarrow.DataType) -> None:
    """Pandas 3 writes large_string; labels and texts can have different types, too."""
    table = arrow_csv.read_csv(reports.write_reports(tmp_path))
    parquet.write_table(table, tmp_path / "a.parquet")
    column = table.column_names.index("descripcion")
    parquet.write_table(
        table.set_column(column, "descripcion", table["descripcion"].cast(kind)), tmp_path / "b.parquet"
    )
    one, two = (load(reports.job(tmp_path, train=name)) for name in ("a.parquet", "b.parquet"))
    assert one.preprocessing == two.preprocessing
    ids = np.arange(len(one.validation))
    assert torch.equal(one.validation.gather(ids)[0], two.validation.gather(ids)[0])
    new = [
        load_data.load_new([tmp_path / n], one.preprocessing, one.heads, labelled=True)
        for n in ("a.parquet", "b.parquet")
    ]
    assert all(torch.equal(new[0].split.targets[name], new[1].split.targets[name]) for name in one.heads)


HEADER = "descripcion,modo,causa,prioridad"


def gaps(folder: Path, every: int = 7) -> list[list[str]]:
    """Rows of the generated reports, some without a label for one of the columns, as reports.csv."""
    rows = list(read_rows(reports.write_reports(folder)).values())
    for i, row in enumerate(rows):
        if i % every == 0:
            row[1 + i // every % 3] = ""
    reports.write_table(folder / "reports.csv", rows, HEADER)
    return rows


def test_a_text_without_one_of_the_labels_trains_the_others(tmp_path: Path) -> None:
    rows = gaps(tmp_path)
    job = reports.job(tmp_path)
    dataset = load(job)
    assert len(dataset.train) + len(dataset.validation) == len(rows)
    lacking = dict.fromkeys(dataset.heads, 0)
    for part in splits(job):
        for i in range(len(part)):
            row = rows[int(part.table.row_numbers[part.rows[i]]) - 1]
            for (name, head), cell in zip(dataset.heads.items(), row[1:], strict=True):
                index = int(part.targets[name][i])
                assert (head.classes[index] if index != NO_LABEL else "") == cell
                lacking[name] += not cell
    assert all(lacking.values())
    assert all(head.partial for head in dataset.heads.values())
    assert says([note for note in dataset.notes if '"modo": ' in note], "texts-label-count-others")
    new = load_data.load_new([tmp_path / "reports.csv"], dataset.preprocessing, dataset.heads, labelled=True)
    assert {name: int((values == NO_LABEL).sum()) for name, values in new.split.targets.items()} == lacking
    for name, count in lacking.items():
        assert says_only(new.notes, "texts-label-count-others-2", name, count, len(rows))
    reports.write_table(tmp_path / "reports.csv", [[row[0], "", *row[2:3], row[3] or "alta"] for row in rows], HEADER)
    new = load_data.load_new([tmp_path / "reports.csv"], dataset.preprocessing, dataset.heads, labelled=True)
    assert says_only(new.notes, "none-texts-label-scores", "modo", len(rows))
    unlabelled = load_data.load_new([tmp_path / "reports.csv"], dataset.preprocessing, dataset.heads, labelled=False)
    assert not [note for note in unlabelled.notes if "label" in note]


def test_a_row_without_any_label_is_left_out_and_a_column_needs_some(tmp_path: Path) -> None:
    rows = gaps(tmp_path)
    rows[3][1:] = ["", "", ""]
    reports.write_table(tmp_path / "reports.csv", rows, HEADER)
    data = load(reports.job(tmp_path))
    assert says(data.notes, "row-line-modo-causa", 4, 5)
    reports.write_table(tmp_path / "held.csv", [[*row[:2], "", row[3]] for row in rows[10:30]], HEADER)
    with pytest.raises(DataError, check=saying("none-validation-texts-label", "data.labels.causa", 20)):
        load(reports.job(tmp_path, data=", validation: held.csv"))


def test_training_with_gaps_in_any_cut(tmp_path: Path) -> None:
    """The losses are the same in micro-batches; the metrics count labelled samples alone."""
    gaps(tmp_path)
    job = reports.job(tmp_path, model=reports.ENCODER.replace("}", ", dropout: 0.0}"))
    losses = []
    for size in (None, 3):
        run = tiny.assemble_plain_run(job, tmp_path / f"run{size}")
        run.step.use_micro_batch(size)
        losses.append(tiny.losses(run, 8))
        metrics, confusion = validation.evaluate(run)
        assert np.isfinite(list(metrics.values())).all()
        for name, counts in confusion.items():
            labelled = int((run.dataset.validation.targets[name] != NO_LABEL).sum())
            assert sum(map(sum, counts["matrix"])) == labelled  # type: ignore[arg-type]
            assert all(run.dataset.validation.targets[name][row["sample"]] != NO_LABEL for row in counts["mistakes"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


@pytest.mark.parametrize("fold_option", ["", ", fold: 2/3"], ids=["fraction", "fold"])
def test_groups_are_on_one_side(tmp_path: Path, fold_option: str) -> None:
    rows = list(read_rows(reports.write_reports(tmp_path)).values())
    users = [f"u{i % 10}" for i in range(len(rows))]
    reports.write_table(
        tmp_path / "reports.csv", [[*row, user] for row, user in zip(rows, users, strict=True)], f"{HEADER},user"
    )
    job = reports.job(tmp_path, data=f", groups: user{fold_option}")
    sides = [{users[int(part.table.row_numbers[row]) - 1] for row in part.rows} for part in splits(job)]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]
    assert says([note for note in load(job).notes if note.startswith("groups of user: ")], "none-both-sides")
    with pytest.raises(DataError, match=r'data.groups: .*has no column "usr"'):
        reports.job(tmp_path, data=", groups: usr")
    with pytest.raises(SpecError, match=r"data.groups: has 'modo', which data.labels has too"):
        reports.job(tmp_path, data=", groups: modo")
