"""The worst mistakes: found by the evaluation, written with pictures or texts, shown by the report."""

from __future__ import annotations

import base64
import io
import json
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.report import write as reports
from drivetrain.report.sample_sections import list_mistake_sections
from drivetrain.training.evaluation.worst_mistakes import MAX_MISTAKES, WorstMistakes, draw_picture, encode_picture
from tests import tiny
from tests.messages import says
from tests.report_folder import change_json, make_run
from tests.report_page import read_page
from tests.supervisor.tiny_run import train


@pytest.mark.parametrize("size", [1, 7, 50])
def test_the_most_confident_mistakes_do_not_depend_on_the_batch(size: int) -> None:
    outputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * 3
    truth = torch.arange(50) % 4
    worst = WorstMistakes()
    for start in range(0, 50, size):
        part = slice(start, start + size)
        worst.update(np.arange(50)[part], outputs[part], truth[part])
    sure, guess = outputs.softmax(dim=1).max(dim=1)
    wrong = [i for i in range(50) if guess[i] != truth[i]]
    expected = sorted(wrong, key=lambda i: -float(sure[i]))[:MAX_MISTAKES]
    assert len(wrong) > MAX_MISTAKES
    assert [row["sample"] for row in worst.to_json()] == expected
    assert all(row["truth"] == truth[row["sample"]] != row["answer"] for row in worst.to_json())


def test_mistakes_of_several_processes_are_all_there() -> None:
    outputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(1)) * 3
    truth, ids = torch.arange(60) % 4, np.arange(60)
    parts, all_mistakes = [WorstMistakes() for _ in range(3)], WorstMistakes()
    all_mistakes.update(ids, outputs, truth)
    for number, worst in enumerate(parts):
        part = slice(number * 20, number * 20 + 20)
        worst.update(ids[part], outputs[part], truth[part])
    table = torch.stack([worst.to_table(number, 3) for number, worst in enumerate(parts)]).sum(0)
    parts[0].read_table(table)
    assert parts[0].to_json() == all_mistakes.to_json()


def test_a_network_without_mistakes_and_one_without_numbers() -> None:
    worst = WorstMistakes()
    worst.update(np.arange(3), torch.eye(3) * 9, torch.arange(3))
    assert worst.to_json() == []
    worst.update(np.arange(2), torch.full((2, 3), float("nan")), torch.tensor([2, 2]))
    assert [row["probability"] for row in worst.to_json()] == [0.0, 0.0]


def test_a_picture_is_small_and_the_sample() -> None:
    split = tiny.dataset().validation
    image = Image.open(io.BytesIO(base64.b64decode(encode_picture(draw_picture(split, 2)))))
    assert image.size == (8, 8)
    sample = split.gather(np.array([2]))[0][0, 0]
    assert int(np.asarray(image.convert("L")).argmax()) == int(sample.argmax())


def test_a_run_ends_with_its_mistakes_in_the_report(job: Path) -> None:
    """Labels that cannot be learned leave mistakes for sure."""
    labels = np.random.default_rng(1).integers(0, 3, 160)
    images = (np.random.default_rng(0).random((160, 8, 8)) * 255).astype(np.uint8)
    np.savez(job.parent / "images.npz", images=images, labels=labels)
    done = train(job)
    assert done.returncode == 0, done.stderr
    run = job.parent / "runs" / "tiny-001"
    (rows,) = json.loads((run / "result.json").read_text())["mistakes"].values()
    assert 0 < len(rows) <= MAX_MISTAKES
    for row in rows:
        sample_number = int(row["title"].rsplit("[", 1)[1].rstrip("]"))
        assert row["truth"] == str(labels[sample_number]) != row["answer"]
        picture = Image.open(io.BytesIO(base64.b64decode(row["picture"]))).convert("L")
        np.testing.assert_array_equal(np.asarray(picture), images[sample_number])
    page = (run / "report.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == len(rows)
    assert "Most confident mistakes" in (run / "report.md").read_text()
    assert read_page(run).open == []  # what follows the pictures is not in italics


def render_sections(mistakes: dict[str, Any]) -> str:
    return "\n".join(str(section) for section in list_mistake_sections(mistakes))


TEXT = {"title": "reports.csv row 3: <b>the pump</b> leaks", "truth": "leak", "answer": "wear", "probability": 0.91}


def test_texts_are_a_table_for_each_head(tmp_path: Path) -> None:
    run = make_run(tmp_path / "texts-001")
    change_json(run / "result.json", lambda r: r.update(mistakes={"causa": [TEXT], "modo": []}))
    reports.write(run)
    page = (run / "report.html").read_text()
    assert says(page, "most-confident-mistakes-causa")
    assert "mistakes of modo" not in page
    assert "&lt;b&gt;the pump&lt;/b&gt; leaks" in page
    assert "reports.csv row 3" in unescape(page)


@pytest.mark.parametrize(
    "row",
    [
        {},
        None,
        7,
        {**TEXT, "probability": "high"},
        {**TEXT, "title": None, "truth": 3},
        {**TEXT, "picture": 'iVBORw0KGgo"><script>'},
        {**TEXT, "picture": "AAAAAAAAAAAA"},
        {**TEXT, "picture": [1]},
    ],
)
def test_damaged_rows_break_nothing(tmp_path: Path, row: Any) -> None:
    run = make_run(tmp_path / "texts-001")
    change_json(run / "result.json", lambda r: r.update(mistakes={"": [row, TEXT]}))
    reports.write(run)
    page = (run / "report.html").read_text()
    assert "the pump" in page
    assert "<script" not in page
    assert "<img" not in page


@pytest.mark.parametrize("data", [{"": 7}, {"": None}, [], "{"])
def test_damaged_values_break_nothing(tmp_path: Path, data: Any) -> None:
    run = make_run(tmp_path / "texts-001")
    change_json(run / "result.json", lambda r: r.update(mistakes=data))
    reports.write(run)
    assert "Most confident mistakes" not in (run / "report.html").read_text()


def test_pictures_never_make_the_page_large(tmp_path: Path) -> None:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40_000)).decode()
    run = make_run(tmp_path / "images-001")
    mistakes = {f"head {i}": [{**TEXT, "picture": data}] * 6 for i in range(5)}
    change_json(run / "result.json", lambda r: r.update(mistakes=mistakes))
    reports.write(run)
    assert (run / "report.html").stat().st_size < 2_000_000
    assert says((run / "report.html").read_text(), "most-confident-mistakes-head", 4), "as a table"
