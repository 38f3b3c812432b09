"""Collects the worst mistakes of an evaluation: samples with the most confident wrong classes.

An evaluation keeps their ids. At the end of the run, those of the best evaluation are written with a name and, for
images, a small picture, so that the report needs no data.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drivetrain.data.stateless_random import Ids
from drivetrain.system.run_files import MISTAKES_FILE, RunFiles

if TYPE_CHECKING:
    from PIL.Image import Image

    from drivetrain.data.dataset import Split
    from drivetrain.training.run import Run

MAX_MISTAKES = 12
"""Mistakes that are kept of each head."""
PICTURE_SIDE = 96
"""Pixels of the longer side of a picture."""


class WorstMistakes:
    """The most confident wrong predictions of one head with exclusive classes."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int, int]] = []
        """Probability of the predicted class, sample id, true class, predicted class; most confident first."""

    def update(self, ids: Ids, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, classes), targets (N,) or probabilities (N, classes), samples `ids` (N,)."""
        truth = targets.argmax(dim=1) if targets.ndim == 2 else targets
        confidence, predicted = outputs.softmax(dim=1).max(dim=1)
        confidence = torch.where(predicted == truth, -1.0, confidence.nan_to_num(0.0))
        top_confidence, top_rows = confidence.topk(min(MAX_MISTAKES, len(confidence)))
        for probability, row in zip(top_confidence.tolist(), top_rows.tolist(), strict=True):
            if probability >= 0:
                self.rows.append((probability, int(ids[row]), int(truth[row]), int(predicted[row])))
        self._sort()

    def _sort(self) -> None:
        # Ties are broken by sample id, so that the batch size does not matter.
        self.rows = sorted(self.rows, key=lambda row: (-row[0], row[1]))[:MAX_MISTAKES]

    def to_table(self, rank: int, process_count: int) -> Tensor:
        """The rows as one of `process_count` slices, (count, MAX_MISTAKES, 5) float64, zero elsewhere; the sum over all processes has
        all rows.
        """
        slices = torch.zeros(process_count, MAX_MISTAKES, 5, dtype=torch.float64)
        for index, row in enumerate(self.rows):
            slices[rank, index] = torch.tensor([1.0, *row], dtype=torch.float64)
        return slices

    def read_table(self, table: Tensor) -> None:
        """Take the worst rows from the sum of the tables of all processes."""
        rows = [row for row in table.flatten(0, 1).tolist() if row[0]]
        self.rows = [(row[1], int(row[2]), int(row[3]), int(row[4])) for row in rows]
        self._sort()

    def to_json(self) -> list[dict[str, object]]:
        """Plain JSON data."""
        return [
            {"sample": sample, "truth": truth, "answer": predicted, "probability": round(confidence, 6)}
            for confidence, sample, truth, predicted in self.rows
        ]


def write(run: Run, confusion: Mapping[str, Any]) -> None:
    """Write the mistakes of an evaluation to the run folder; an error is only recorded as an event."""
    try:
        mistakes_by_head = {
            head: [_describe_mistake(run, record, row) for row in record.get("mistakes", [])]
            for head, record in confusion.items()
        }
        RunFiles(run.folder).write_json(MISTAKES_FILE, mistakes_by_head)
    except Exception as error:
        # The run is done and its model is written; only a part of the report is missing.
        run.events.add("report", f"the samples with the worst predictions were not saved: {error}", run.counters.step)


def _describe_mistake(run: Run, record: Mapping[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    split = run.readable.validation
    mistake = {key: value for key, value in row.items() if key != "sample"} | {"title": split.title(row["sample"])}
    if "classes" in record:
        mistake |= {key: record["classes"][row[key]] for key in ("truth", "answer")}
    if run.job.task.startswith("image") and "classes" in record:
        mistake["picture"] = encode_picture(draw_picture(split, row["sample"]))
    return mistake


def draw_picture(split: Split, sample: int) -> Image:
    """A validation image, with three channels."""
    from PIL.Image import fromarray

    pixels = split.gather(torch.tensor([sample]).numpy())[0][0].cpu()
    if pixels.dtype != torch.uint8:
        low, high = pixels.min(), pixels.max()
        pixels = ((pixels.float() - low) / (high - low).clamp_min(1e-9) * 255).to(torch.uint8)
    pixels = pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else pixels[:3]
    return fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def encode_picture(image: Image) -> str:
    """A picture as a small PNG or JPEG, whichever has fewer bytes, in base64."""
    image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    files = []
    for kind in ("png", "jpeg"):
        data = io.BytesIO()
        image.save(data, kind)
        files.append(data.getvalue())
    return base64.b64encode(min(files, key=len)).decode()
