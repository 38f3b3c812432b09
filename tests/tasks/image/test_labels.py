"""Several labels, or numbers, for each image: in every form that people have them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from drivetrain.data.dataset import Dataset
from drivetrain.data.load_data import load
from drivetrain.errors import DataError, SpecError
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.training import batch_inputs
from tests import pictures, tiny
from tests.messages import saying, says
from tests.tiny import assemble_plain_run

NAMES = ("cat", "dog", "owl")
COUNT = 28
SPEC = "name: t\ntask: {task}\ndata: {{train: {train}, validation: 0.25, image_size: 16{data_keys}}}\n" + (
    "model: {{name: small-cnn, width: 4}}\ntrain: {{batch_size: 8{train_more}}}\noptimize: {{cpu_threads: 1}}\n"
)
torch.set_num_threads(1)


def sets() -> list[list[str]]:
    """Labels of each image; some have none."""
    return [
        [name for position, name in enumerate(NAMES) if (number * 5 % 8 >> position) & 1] for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and their labels in every form."""
    folder = tmp_path_factory.mktemp("labels")
    generator, stack = np.random.default_rng(0), []
    (folder / "p").mkdir()
    for number, names in enumerate(sets()):
        pixels = generator.integers(0, 120, (16, 16)).astype(np.uint8)
        for name in names:
            pixels[:, 5 * NAMES.index(name)] = 255
        Image.fromarray(pixels).save(folder / "p" / f"{number:02}.png")
        stack.append(pixels)
    matrix = np.array([[name in names for name in NAMES] for names in sets()])
    for file, mark in (("bars", "|"), ("commas", ",")):
        table(folder / f"{file}.csv", "tags", [mark.join(names) for names in sets()])
    table(folder / "printed.csv", "tags", [str(names) for names in sets()])
    table(
        folder / "columns.csv",
        ",".join(NAMES),
        [",".join(map(str, row)) for row in matrix.astype(int).tolist()],
        quote="",
    )
    lines = [json.dumps({"path": f"p/{n:02}.png", "tags": names}) for n, names in enumerate(sets())]
    (folder / "lists.jsonl").write_text("\n".join(lines))
    np.savez(folder / "hot.npz", images=np.stack(stack), labels=matrix)
    table(folder / "numbers.csv", "age,size", [f"{n * n % 17},{n / 8:.3f}" for n in range(COUNT)], quote="")
    numbers = np.array([[n * n % 17, n / 8] for n in range(COUNT)])
    np.savez(folder / "numbers.npz", images=np.stack(stack), labels=numbers.round(3))
    return folder


def table(path: Path, header: str, cells: Sequence[str], quote: str = '"') -> None:
    rows = [f"p/{number:02}.png,{quote}{cell}{quote}" for number, cell in enumerate(cells)]
    path.write_text("\n".join([f"path,{header}", *rows]) + "\n")


def job(home: Path, train: str, data_keys: str, *, task: str = "image-classification", train_more: str = "") -> Job:
    spec = home / f"job-{Path(train).stem}.yaml"
    spec.write_text(SPEC.format(task=task, train=train, data_keys=f", {data_keys}", train_more=train_more))
    return job_spec.load(spec)


FORMS = {
    "bars.csv": "label_column: tags, multi_label: true",
    "commas.csv": 'label_column: tags, multi_label: true, label_separator: ","',
    "printed.csv": "label_column: tags, multi_label: true",
    "columns.csv": "label_column: [cat, dog, owl]",
    "lists.jsonl": "label_column: tags, multi_label: true",
    "hot.npz": "multi_label: true",
}


def test_every_form_trains_to_the_same_bits(home: Path, tmp_path: Path) -> None:
    """The same images with the same labels: split, targets and losses."""
    results_by_form = {}
    for train, data_keys in FORMS.items():
        run = assemble_plain_run(job(home, train, data_keys), tmp_path)
        head = run.dataset.heads[""]
        assert (head.classes, head.several) == (("0", "1", "2") if train == "hot.npz" else NAMES, True)
        targets = [split.targets[""].tolist() for split in (run.dataset.train, run.dataset.validation)]
        titles = [int(re.findall(r"\d+", run.dataset.train.title(n))[-1]) for n in range(len(run.dataset.train))]
        assert targets[0] == [[float(name in sets()[n]) for name in NAMES] for n in titles]
        results_by_form[train] = targets, titles, tiny.losses(run, 4)
    assert all(one == results_by_form["bars.csv"] for one in results_by_form.values())
    assert [] in sets()


@pytest.mark.parametrize("weights", ["", ", class_weights: {owl: 4}"])
def test_the_loss_is_torchs(home: Path, tmp_path: Path, weights: str) -> None:
    run = assemble_plain_run(job(home, "bars.csv", FORMS["bars.csv"], train_more=weights), tmp_path)
    batch = batch_inputs.preprocess(run, next(iter(run.batches.epoch(0))), 0)
    run.train_mode()
    outputs = run.model(*batch.inputs)
    positive = torch.tensor([1.0, 1.0, 4.0]) if weights else None
    expected = functional.binary_cross_entropy_with_logits(outputs, batch.targets[""], pos_weight=positive)
    assert tiny.losses(run, 1)[0] == pytest.approx(expected.item(), rel=1e-6)


def test_mixup_and_label_smoothing_of_labels(home: Path, tmp_path: Path) -> None:
    """Both inputs and labels are blended with the same share; smoothing moves them towards one half."""
    data_keys = f"{FORMS['bars.csv']}, augment: {{mixup: {{alpha: 1.0}}}}"
    run = assemble_plain_run(
        job(home, "bars.csv", data_keys, train_more=", loss: {name: bce, label_smoothing: 0.1}"), tmp_path
    )
    batch = batch_inputs.preprocess(run, next(iter(run.batches.epoch(0))), 0)
    mixed = batch_inputs.mix_samples(run, batch)
    assert not torch.equal(mixed.targets[""], batch.targets[""])
    input_change = mixed.inputs[0] - batch.inputs[0]
    assert torch.allclose(input_change.mean(dim=(1, 2, 3)).sum(), torch.tensor(0.0), atol=1e-4)
    smoothed_targets = mixed.targets[""] * 0.9 + 0.05
    run.train_mode()
    expected = functional.binary_cross_entropy_with_logits(run.model(*mixed.inputs), smoothed_targets)
    assert run.step(mixed).loss == pytest.approx(expected.item(), rel=1e-5)


def test_the_split_keeps_rare_labels_on_both_sides(home: Path) -> None:
    cells = ["a"] * 20 + ["a|rare", "rare", "", "", "b", "b|a", "b", "b"]
    table(home / "rare.csv", "label", cells)
    for seed in range(4):
        data = load(job(home, "rare.csv", "multi_label: true", train_more=f", seed: {seed}"))
        assert all((split.targets[""].sum(0) > 0).all() for split in (data.train, data.validation))
        assert any("labels: a: 22, b: 4, rare: 2; 2 images have none" in note for note in data.notes)


def read_error(home: Path, cells: Sequence[str], data_keys: str = "", **options: Any) -> str:
    table(home / "odd.csv", "label", (list(cells) * COUNT)[:COUNT])
    with pytest.raises((DataError, SpecError)) as error:
        load(job(home, "odd.csv", data_keys or "bad_samples: 0.05", **options))
    return str(error.value)


AMBIGUOUS = {
    "labels, a class or a number": (["1,5", "1", "5"], "", '"1,5"', "or a decimal number", "`multi_label: true`"),
    "labels or a class": (
        ["cat|dog", "cat", "owl"],
        "",
        '"cat|dog"',
        "several labels, or one class?",
        "multi_label: false",
    ),
    "labels or a number": (
        ["1,5", "2,25", "3"],
        "multi_label: true",
        "two labels, or a decimal number?",
        "image-regression",
    ),
    "two separators": (["a|b", "a;c"], "multi_label: true", '"a|b" with a bar', '"a;c" with a semicolon'),
    "spaces": (["haze road", "road"], "multi_label: true", '"haze road"', 'label_separator: " "'),
    "numbers": ([f"{n}.5" for n in range(COUNT)], "", "28 different numbers such as 0.5", "image-regression"),
    "no label": ([""], "multi_label: true", "none of 28 images has a label"),
    "a label of all": (["a", "a|b"], "multi_label: true", "a is 1 in all"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_asked(home: Path, name: str) -> None:
    cells, data_keys, *parts = AMBIGUOUS[name]
    error_text = read_error(home, cells, data_keys)  # type: ignore[arg-type]
    assert not [part for part in parts if part not in error_text], error_text


def test_the_answer_is_taken(home: Path) -> None:
    table(home / "odd.csv", "label", (["1,5", "1", "5"] * COUNT)[:COUNT])
    assert load(job(home, "odd.csv", "multi_label: false")).heads[""].classes == ("1", "1,5", "5")
    both = load(job(home, "odd.csv", 'multi_label: true, label_separator: ","')).heads[""]
    assert (both.classes, both.several) == (("1", "5"), True)
    assert load(job(home, "odd.csv", "label_column: label", task="image-regression")).heads[""].columns == ("label",)


def test_a_new_label_and_folders_are_refused(home: Path) -> None:
    table(home / "held.csv", "tags", ["cat|doge", "dog"])
    data_keys = FORMS["bars.csv"]
    (home / "job.yaml").write_text(
        SPEC.format(task="image-classification", train="bars.csv", data_keys=f", {data_keys}", train_more="").replace(
            "validation: 0.25", "validation: held.csv"
        )
    )
    with pytest.raises(DataError, check=saying("classes-training-data-3", "data.validation", "doge")):
        load(job_spec.load(home / "job.yaml"))
    with pytest.raises(DataError, check=saying("gives-image-class-several")):
        load(job(home, "p", "multi_label: true"))
    with pytest.raises(DataError, match="add `multi_label: true`"):
        load(job(home, "hot.npz", "bad_samples: 0.05"))


def assert_same_targets(data: Dataset, other: Dataset) -> None:
    assert data.heads[""].mean == pytest.approx(other.heads[""].mean)
    assert data.heads[""].std == pytest.approx(other.heads[""].std)
    for one, two in ((data.train, other.train), (data.validation, other.validation)):
        torch.testing.assert_close(one.targets[""], two.targets[""])


def test_numbers_are_those_of_a_table_task(home: Path, tmp_path: Path) -> None:
    """Split, scale and scaled targets of the same columns; in an .npz too, and the loss is torch's."""
    data_keys = "label_column: [age, size]"
    run = assemble_plain_run(job(home, "numbers.csv", data_keys, task="image-regression"), tmp_path)
    (home / "table.csv").write_text(
        "".join(
            f"{line},{number % 5}\n" if number else f"{line},x\n"
            for number, line in enumerate((home / "numbers.csv").read_text().splitlines())
        )
    )
    (home / "table.yaml").write_text(
        "name: t\ntask: tabular-regression\ndata: {train: table.csv, validation: 0.25, "
        "target: [age, size], features: [x]}\n"
    )
    assert_same_targets(run.dataset, load(job_spec.load(home / "table.yaml")))
    assert_same_targets(run.dataset, load(job(home, "numbers.npz", "channels: 1", task="image-regression")))
    batch = batch_inputs.preprocess(run, next(iter(run.batches.epoch(0))), 0)
    run.train_mode()
    expected = functional.mse_loss(run.model(*batch.inputs), batch.targets[""])
    assert tiny.losses(run, 1)[0] == pytest.approx(expected.item(), rel=1e-6)


WRONG = {
    "cutmix of numbers": ("image-regression", "augment: {cutmix: {}}", "", "data.augment.cutmix: mixes labels by area"),
    "class weights of numbers": ("image-regression", "channels: 1", ", class_weights: balanced", "train.class_weights"),
    "smoothing of numbers": (
        "image-regression",
        "channels: 1",
        ", loss: {name: mse, label_smoothing: 0.1}",
        "unknown key",
    ),
    "cross entropy of labels": (
        "image-classification",
        "multi_label: true",
        ", loss: focal",
        "image-classification: bce",
    ),
    "bce of classes": ("image-classification", "channels: 1", ", loss: bce", "cross-entropy, focal"),
    "a metric of labels": ("image-classification", "channels: 1", ", early_stopping: {metric: validation/map}", "is"),
    "a separator without labels": ("image-classification", 'label_separator: ","', "", "data.label_separator: is ','"),
    "columns that are no labels": (
        "image-classification",
        "label_column: [age, size], multi_label: false",
        "",
        "data.multi_label: is false, and data.label_column names 2 columns",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_that_do_not_fit_are_refused(home: Path, name: str) -> None:
    task, data_keys, train_more, part = WRONG[name]
    with pytest.raises(SpecError) as error:
        job(home, "numbers.csv", data_keys, task=task, train_more=train_more)
    assert part in str(error.value)


def test_labels_that_are_uncertain_or_not_mentioned_are_explained(tmp_path: Path) -> None:
    values = ["1.0", "0.0", "-1.0", ""]
    rows = [f"{number}.png,{values[number % 4]},{values[number // 4 % 4]}" for number in range(16)]
    (tmp_path / "m.csv").write_text("\n".join(["path,p,q", *rows]) + "\n")
    for number in range(16):
        Image.new("L", (16, 16), number).save(tmp_path / f"{number}.png")
    error_text = pictures.read_refusal(pictures.job(tmp_path / "m.csv", label_column=["p", "q"]))
    assert says(error_text, "rows-nothing-label-uncertain", 12, 0, 1)
