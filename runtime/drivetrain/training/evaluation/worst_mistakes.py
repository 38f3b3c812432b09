"""Collects the worst mistakes of an evaluation: samples with the most confident wrong classes.

An evaluation keeps their ids. At the end of the run, the mistakes of the best evaluation get a name and, for
images, a small picture, so that the report needs no data.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drivetrain.data.dataset import Head, Split
from drivetrain.data.stateless_random import Ids
from drivetrain.tasks import modality_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from drivetrain.training.run import Run

MAX_MISTAKES = 12
"""Number of collected mistakes per head."""
PICTURE_SIDE = 96
"""Pixels of the longer side of a picture."""


class FirstRows:
    """Collects the first rows of numbers about samples, sorted by column 0, then by the sample id in column 1.

    Args:
        width: number of columns.
        count: number of rows to keep.
        largest: whether the rows with the largest column 0 come first.
    """

    def __init__(self, width: int, count: int, *, largest: bool) -> None:
        self.rows, self.count, self.largest = torch.zeros(0, width, dtype=torch.float64), count, largest

    def add(self, rows: Tensor) -> None:
        """Add the rows of more samples."""
        rows = torch.cat([self.rows, rows])
        rows = rows[rows[:, 1].argsort(stable=True)]
        sort_key = -rows[:, 0] if self.largest else rows[:, 0]
        self.rows = rows[sort_key.argsort(stable=True)[: self.count]]

    def to_table(self, rank: int, process_count: int) -> Tensor:
        """Return the rows, each after a 1, in slice `rank` of a tensor of zeros, so the sum over all processes has all rows."""
        slices = torch.zeros(process_count, self.count, 1 + self.rows.shape[1], dtype=torch.float64)
        slices[rank, : len(self.rows), 0] = 1
        slices[rank, : len(self.rows), 1:] = self.rows
        return slices

    def read_table(self, table: Tensor) -> None:
        """Set the rows to the first rows in the sum of all processes' tables."""
        rows = table.flatten(0, 1)
        self.rows = self.rows[:0]
        self.add(rows[rows[:, 0] > 0][:, 1:])


class WorstMistakes(FirstRows):
    """The most confident wrong predictions of one head with exclusive classes.

    Rows: probability of the predicted class, sample id, true class, predicted class; most confident first.
    """

    def __init__(self) -> None:
        super().__init__(4, MAX_MISTAKES, largest=True)

    def update(self, ids: Ids, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, classes), targets (N,) or probabilities (N, classes), samples `ids` (N,)."""
        truth = targets.argmax(dim=1) if targets.ndim == 2 else targets
        confidence, predicted = outputs.softmax(dim=1).max(dim=1)
        confidence = torch.where(predicted == truth, -1.0, confidence.nan_to_num(0.0))
        top_confidence, top_rows = confidence.topk(min(MAX_MISTAKES, len(confidence)))
        columns = (top_confidence, torch.as_tensor(ids)[top_rows.cpu()], truth[top_rows], predicted[top_rows])
        rows = torch.stack([column.cpu().double() for column in columns], 1)
        self.add(rows[rows[:, 0] >= 0])

    def to_json(self) -> list[dict[str, object]]:
        """Return plain JSON data."""
        mistakes: list[dict[str, object]] = []
        for confidence, sample, truth, predicted in self.rows.tolist():
            classes = {"truth": int(truth), "answer": int(predicted)}
            mistakes.append({"sample": int(sample), **classes, "probability": round(confidence, 6)})
        return mistakes


def describe_mistakes(run: Run, confusion: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Describe the mistakes of an evaluation by head; an error is only recorded as an event."""
    try:
        mistakes_by_head = {}
        for head, details in confusion.items():
            mistakes_by_head[head] = [_describe_mistake(run, details, row) for row in details.get("mistakes", [])]
        return mistakes_by_head
    except Exception as error:
        # The run is done and its model is written. Only these samples are missing in the report.
        run.events.add("report", f"the samples with the worst predictions were not saved: {error}", run.counters.step)
        return {}


def _describe_mistake(run: Run, details: Mapping[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    split = run.readable.validation
    mistake = {key: value for key, value in row.items() if key != "sample"} | {"title": split.title(row["sample"])}
    if "classes" in details:
        mistake |= {key: details["classes"][row[key]] for key in ("truth", "answer")}
    if modality_of(run.job).has_pictures and "classes" in details:
        mistake["picture"] = encode_picture(draw_picture(split, row["sample"]))
    return mistake


def draw_picture(split: Split, sample: int) -> Image:
    """Draw a validation image with three channels."""
    from PIL.Image import fromarray

    pixels = split.gather(torch.tensor([sample]).numpy())[0][0].cpu()
    if pixels.dtype != torch.uint8:
        low, high = pixels.min(), pixels.max()
        pixels = ((pixels.float() - low) / (high - low).clamp_min(1e-9) * 255).to(torch.uint8)
    pixels = pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else pixels[:3]
    return fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def encode_picture(image: Image) -> str:
    """Encode a picture as a small PNG or JPEG (the smaller file) in base64."""
    image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    files = []
    for kind in ("png", "jpeg"):
        data = io.BytesIO()
        image.save(data, kind)
        files.append(data.getvalue())
    return base64.b64encode(min(files, key=len)).decode()


MAX_ERRORS = 12
"""Number of samples with the largest errors, per head."""
MAX_PLOTTED = 300
"""Number of samples in the plot of predicted against true numbers, per head."""
SCATTER_FACTOR, SCATTER_MODULUS = 1_103_515_245, 2**31
"""Constants of `id * SCATTER_FACTOR % SCATTER_MODULUS`, an order of samples that is unrelated to the file's order."""


class NumberSamples:
    """Collects true and predicted numbers of some samples of one head."""

    def __init__(self, head: Head) -> None:
        self.head = head
        width = 2 + 2 * len(head.columns)
        self.errors = FirstRows(width, MAX_ERRORS, largest=True)
        """Rows of: largest error of the sample in standard deviations, its id, true numbers, predicted numbers."""
        self.plotted = FirstRows(width, MAX_PLOTTED, largest=False)
        """Rows of: position in the scattered order, id, true numbers, predicted numbers."""

    def update(self, ids: Ids, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: the standardized outputs and targets (N, columns) of the samples `ids` (N,)."""
        truth, predicted = targets.cpu().double(), outputs.cpu().double()
        sample_ids = torch.as_tensor(ids)
        largest_errors = (predicted - truth).abs().amax(1).nan_to_num(-torch.inf, -torch.inf)
        positions = (sample_ids * SCATTER_FACTOR % SCATTER_MODULUS).double()
        samples = torch.cat([sample_ids.double()[:, None], truth, predicted], 1)
        self.errors.add(torch.cat([largest_errors[:, None], samples], 1))
        self.plotted.add(torch.cat([positions[:, None], samples], 1))

    def to_table(self, rank: int, process_count: int) -> Tensor:
        """Return the rows of both kinds, as in `FirstRows.to_table`."""
        return torch.cat([rows.to_table(rank, process_count) for rows in (self.errors, self.plotted)], 1)

    def read_table(self, table: Tensor) -> None:
        """Set the rows from the sum of the tables of all processes."""
        self.errors.read_table(table[:, :MAX_ERRORS])
        self.plotted.read_table(table[:, MAX_ERRORS:])

    def to_json(self) -> dict[str, Any]:
        """Return JSON values in the units of the data; samples with a prediction that is not finite are skipped."""
        errors = []
        rows = self.errors.rows
        for row, truth, prediction in zip(rows.tolist(), *self._unscale(rows), strict=True):
            if _are_finite(prediction):
                column = self._find_worst_column(row)
                errors.append({"sample": int(row[1]), "column": column, "truth": truth, "answer": prediction})
        pairs = [pair for pair in zip(*self._unscale(self.plotted.rows), strict=True) if _are_finite(pair[1])]
        return {"columns": list(self.head.columns), "mistakes": errors, "pairs": pairs}

    def _find_worst_column(self, row: list[float]) -> int:
        """Find the index of the column with the largest error in a row, in standard deviations."""
        count = len(self.head.columns)
        return max(range(count), key=lambda column: abs(row[2 + count + column] - row[2 + column]))

    def _unscale(self, rows: Tensor) -> tuple[list[list[float]], list[list[float]]]:
        """Return the true and the predicted numbers of rows, in the units of the data."""
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (self.head.mean, self.head.std))
        truth, predicted = rows[:, 2:].chunk(2, dim=1)
        return (truth * std + mean).tolist(), (predicted * std + mean).tolist()


def _are_finite(numbers: list[float]) -> bool:
    return all(abs(number) < float("inf") for number in numbers)
