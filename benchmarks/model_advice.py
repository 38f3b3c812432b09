"""The first advice about the model after two times twelve trainings, of which eleven each were built to need one.

    python benchmarks/model_advice.py [CASE ...] [--folder DIR]

What each run should be advised first stands here, in CASES, and was written down before the first of them was trained.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
FEWER, MORE, RATE, WEAK = (
    "train for fewer epochs",
    "train for more epochs",
    "measure the learning rate",
    "help the weakest class",
)
SMALLER, SAMPLES, WHOLE = "train in smaller batches", "judge it on more samples", "show the network whole pictures"

ABOUT_MODEL = (FEWER, MORE, RATE, WEAK, SMALLER, SAMPLES, WHOLE, "lower the learning rate")

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A training and the advice that it should get first; "" for none."""

    write_data: Callable[[Path], dict[str, object]]
    """Writes the data into a folder, and returns the task and the data of the job."""
    train: dict[str, object]
    expected: str


def write_rows(folder: Path, numbers: Numbers, answers: list[str]) -> None:
    """Write a table of numbers, (rows, columns), with an answer in each row."""
    lines = [",".join([*(f"n{i}" for i in range(numbers.shape[1])), "answer"])]
    lines += [
        ",".join([*(f"{value:.4f}" for value in row), answer]) for row, answer in zip(numbers, answers, strict=True)
    ]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_table(rows: int, positive: float = 0.5, noise: float = 1.0) -> Callable[[Path], dict[str, object]]:
    """A table of twenty numbers of which four count, with this share of positive answers."""

    def write(folder: Path) -> dict[str, object]:
        draw = np.random.default_rng(3)
        numbers = draw.normal(0, 1, (rows, 20))
        score = numbers[:, 0] + numbers[:, 1] * numbers[:, 2] - numbers[:, 3] + draw.normal(0, noise, rows)
        answers = np.where(score > np.quantile(score, 1 - positive), "yes", "no")
        write_rows(folder, numbers, answers.tolist())
        return {"task": "tabular-classification", "data": {"train": "rows.csv", "target": "answer"}}

    return write


def write_texts(rows: int) -> Callable[[Path], dict[str, object]]:
    """Texts of thirty words, of which a few are more frequent in one class; a tenth of the labels is wrong."""

    def write(folder: Path) -> dict[str, object]:
        draw = np.random.default_rng(4)
        lines = ["text,label"]
        for _ in range(rows):
            label = int(draw.integers(3))
            sample_words = [
                f"sign{label}{draw.integers(20)}" if draw.random() < 0.06 else f"word{draw.integers(4000)}"
                for _ in range(30)
            ]
            shown_label = label if draw.random() > 0.1 else int(draw.integers(3))
            lines.append(f"{' '.join(sample_words)},{'abc'[shown_label]}")
        (folder / "texts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        data = {"train": "texts.csv", "text": "text", "labels": "label"}
        return {"task": "text-classification", "data": data}

    return write


def write_digits(folder: Path) -> dict[str, object]:
    """The digits of scikit-learn, as the example job has them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez_compressed(
        folder / "digits.npz", images=(digits.images * 15.9).astype(np.uint8), labels=digits.target.astype(np.int64)
    )
    return {"task": "image-classification", "data": {"train": "digits.npz"}}


def write_banners(folder: Path) -> dict[str, object]:
    """Pictures three times as wide as high; the bright spot that shows the class lies at the left or right end."""
    draw = np.random.default_rng(5)
    for number in range(600):
        pixels = draw.integers(0, 120, (32, 96, 3), dtype=np.uint8)
        name = ("left", "right")[number % 2]
        start = 4 if name == "left" else 80
        pixels[8:24, start : start + 12] += 120
        (folder / "banners" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "banners" / name / f"{number:03}.png")
    return {"task": "image-classification", "data": {"train": "banners"}}


def write_rare_shape(folder: Path) -> dict[str, object]:
    """Squares, crosses and, rarely, a shape between the two."""
    draw = np.random.default_rng(6)
    for number in range(900):
        name = "mixed" if number % 25 == 0 else ("cross", "square")[number % 2]
        pixels = draw.integers(0, 250, (24, 24), dtype=np.uint8)
        if name != "cross":
            pixels[6:18, 6:18] += 60
        if name != "square":
            pixels[11:13, 3:21] += 60
            pixels[3:21, 11:13] += 30
        (folder / "shapes" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "shapes" / name / f"{number:03}.png")
    return {"task": "image-classification", "data": {"train": "shapes"}}


def write_numbers(rows: int, noise: float) -> Callable[[Path], dict[str, object]]:
    """A table of eight numbers, and a number that is the product of two of them plus a third one, under noise."""

    def write(folder: Path) -> dict[str, object]:
        draw = np.random.default_rng(7)
        numbers = draw.normal(0, 1, (rows, 8))
        answers = 50 + 10 * (numbers[:, 0] * numbers[:, 1] + numbers[:, 2] + draw.normal(0, noise, rows))
        write_rows(folder, numbers, [f"{answer:.4f}" for answer in answers])
        return {"task": "tabular-regression", "data": {"train": "rows.csv", "target": "answer"}}

    return write


def write_windows(rows: int, noise: float, rare: float = 0.5) -> Callable[[Path], dict[str, object]]:
    """Windows of 32 rows of three channels; the rarer class, of this share, swings a little faster than the other."""

    def write(folder: Path) -> dict[str, object]:
        draw = np.random.default_rng(8)
        labels = (draw.random(rows) < rare).astype(np.int64)
        times = np.linspace(0, 6, 32)[None, :, None] * (1 + 0.25 * labels)[:, None, None]
        values = np.sin(times + draw.uniform(0, 6, (rows, 1, 3))) + draw.normal(0, noise, (rows, 32, 3))
        np.savez_compressed(folder / "windows.npz", x=values.astype(np.float32), y=labels)
        return {"task": "series-classification", "data": {"train": "windows.npz"}}

    return write


def write_posters(folder: Path) -> dict[str, object]:
    """Pictures three times as high as wide; the dark bar that shows the class lies at the top or at the bottom."""
    draw = np.random.default_rng(9)
    for number in range(500):
        pixels = draw.integers(120, 250, (90, 30, 3), dtype=np.uint8)
        name = ("bottom", "top")[number % 2]
        start = 3 if name == "top" else 76
        pixels[start : start + 11, 4:26] -= 110
        (folder / "posters" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "posters" / name / f"{number:03}.png")
    return {"task": "image-classification", "data": {"train": "posters"}}


def write_few_digits(folder: Path) -> dict[str, object]:
    """The first 120 digits of scikit-learn."""
    job = write_digits(folder)
    with np.load(folder / "digits.npz") as arrays:
        first = {name: arrays[name][:120] for name in ("images", "labels")}
    np.savez_compressed(folder / "digits.npz", **first)
    return job


def rate(value: float) -> dict[str, object]:
    """The optimizer with this learning rate."""
    return {"name": "adamw", "lr": value}


CASES = {
    "overfitted-table": Case(write_table(3000, noise=2.0), {"epochs": 60, "batch_size": 32}, FEWER),
    "overfitted-texts": Case(write_texts(1500), {"epochs": 40, "batch_size": 32}, FEWER),
    "underfitted-digits": Case(write_digits, {"epochs": 2, "batch_size": 32, "optimizer": rate(3e-4)}, MORE),
    "underfitted-texts": Case(write_texts(8000), {"epochs": 2, "batch_size": 64, "optimizer": rate(3e-4)}, MORE),
    "rate-too-high": Case(write_digits, {"epochs": 8, "batch_size": 32, "optimizer": rate(3.0)}, RATE),
    "rate-too-low": Case(write_digits, {"epochs": 8, "batch_size": 32, "optimizer": rate(1e-7)}, RATE),
    "rare-class-table": Case(write_table(6000, positive=0.05, noise=1.0), {"epochs": 5, "batch_size": 64}, WEAK),
    "rare-class-pictures": Case(write_rare_shape, {"epochs": 15, "batch_size": 32}, WEAK),
    "cropped-pictures": Case(write_banners, {"epochs": 10, "batch_size": 32}, WHOLE),
    "tiny-table": Case(write_table(150, noise=0.3), {"epochs": 10, "batch_size": 8}, SAMPLES),
    "large-batch": Case(write_table(400, noise=0.3), {"epochs": 20, "batch_size": 256}, SMALLER),
    "nothing-to-change": Case(write_digits, {"epochs": 12, "batch_size": 32}, ""),
    # The second twelve, written down before any of them was trained, for rules that had seen the first twelve.
    "overfitted-series": Case(write_windows(500, noise=1.5), {"epochs": 60, "batch_size": 32}, FEWER),
    "overfitted-numbers": Case(write_numbers(600, noise=1.5), {"epochs": 80, "batch_size": 32}, FEWER),
    "underfitted-series": Case(
        write_windows(3000, noise=0.6), {"epochs": 2, "batch_size": 64, "optimizer": rate(3e-4)}, MORE
    ),
    "underfitted-numbers": Case(
        write_numbers(5000, noise=0.3), {"epochs": 3, "batch_size": 64, "optimizer": rate(3e-4)}, MORE
    ),
    "rate-too-high-texts": Case(write_texts(3000), {"epochs": 4, "batch_size": 32, "optimizer": rate(1.0)}, RATE),
    "rate-too-low-table": Case(write_table(3000), {"epochs": 6, "batch_size": 32, "optimizer": rate(1e-8)}, RATE),
    "rare-class-series": Case(write_windows(4000, noise=1.0, rare=0.04), {"epochs": 8, "batch_size": 64}, WEAK),
    "rarer-class-table": Case(write_table(8000, positive=0.03, noise=0.8), {"epochs": 8, "batch_size": 64}, WEAK),
    "cropped-posters": Case(write_posters, {"epochs": 10, "batch_size": 32}, WHOLE),
    "tiny-pictures": Case(write_few_digits, {"epochs": 12, "batch_size": 8}, SAMPLES),
    "large-batch-series": Case(write_windows(400, noise=0.3), {"epochs": 20, "batch_size": 256}, SMALLER),
    "nothing-for-a-table": Case(write_table(20000, noise=0.3), {"epochs": 8, "batch_size": 64}, ""),
}


def main() -> None:
    """Train the cases, and print the expected advice beside the first that was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE")
    parser.add_argument("--folder", type=Path, default=Path("runs/model-advice"))
    arguments = parser.parse_args()
    names = arguments.cases or list(CASES)
    right = sum(_try_case(name, CASES[name], arguments.folder.resolve() / name) for name in names)
    print(f"{right} of {len(names)} as expected")


def _try_case(name: str, case: Case, folder: Path) -> bool:
    folder.mkdir(parents=True)
    job = {"name": name, **case.write_data(folder), "train": {"seed": 1, **case.train}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "runtime")}
    command = [sys.executable, "-m", "drivetrain", "train", "job.yaml"]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    report = json.loads((folder / "runs" / f"{name}-001" / "report.json").read_text(encoding="utf-8"))
    advice = report["advice"]
    # Advice about speed comes after that about the model, and these runs get it only beside other work.
    first = next((advised for advised in advice if advised["change"] in ABOUT_MODEL), None)
    is_right = (first["change"] if first else "") == case.expected
    advised_text = f"{first['change']} ({first['line']})" if first else "nothing"
    print(
        f"{'ok ' if is_right else 'NO '} {name}: expected {case.expected or 'nothing'!r}, got {advised_text}",
        flush=True,
    )
    return is_right


if __name__ == "__main__":
    main()
