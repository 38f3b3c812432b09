"""Shows the plan and the first batch in TensorBoard when a run begins."""

from __future__ import annotations

from functools import partial

import torch
from PIL import Image
from torch import Tensor

from drivetrain.data.dataset import Batch
from drivetrain.data.loader.batches import fetch
from drivetrain.plan.plan import Plan, format_value
from drivetrain.tracking.tensorboard import PngImage, Value
from drivetrain.training.run import Run

SHOWN_IMAGES = 16
"""Images of the first batch that are shown."""


def show_overview(run: Run) -> None:
    """Show the plan, and for images the first batch. The run's random numbers are not affected."""
    assert run.metrics is not None
    entries: dict[str, Value] = {"plan": format_plan(run.plan)}
    try:
        entries |= _draw_first_batch(run)
    except Exception as error:
        # The training reports a sample that cannot be read; here only its picture is missing.
        run.events.add("tensorboard", f"the first batch could not be drawn: {error}", run.counters.step)
    run.metrics.board.put(run.counters.step, entries)


def format_plan(plan: Plan) -> str:
    """The decisions as a Markdown table."""
    rows = [
        (
            row.name,
            format_value(row.value),
            row.source,
            row.effect,
            f"{row.reason}; {row.evidence}" if row.evidence else row.reason,
        )
        for row in plan.decisions
    ]
    lines = [("setting", "value", "source", "effect", "reason"), ("---",) * 5, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _draw_first_batch(run: Run) -> dict[str, Value]:
    if run.counters.step or not run.job.task.startswith("image"):
        return {}
    data = run.readable
    batch = next(iter(fetch(data.train, run.batches.order(0)[:1]))).to(run.device)
    with torch.no_grad():
        ready = Batch(batch.ids, data.prepare(batch.inputs, batch.ids, 0), batch.targets)
        images = run.mix(ready).inputs[0][:SHOWN_IMAGES].float().cpu()
    scale = run.dataset.preprocessing
    return {
        "batch/as the network sees it": partial(tile, images, scale.get("mean"), scale.get("std"))
    }


MIN_SIDE_PIXELS = 96
"""Pixels; smaller images are enlarged to this side."""


def tile(images: Tensor, mean: object = None, std: object = None) -> PngImage:
    """Images (N, channels, height, width) in a grid of four columns, with the normalization undone."""
    if mean and std:
        images = images * torch.tensor(std).view(1, -1, 1, 1) + torch.tensor(mean).view(1, -1, 1, 1)
    else:
        images = (images - images.min()) / (images.max() - images.min()).clamp_min(1e-9)
    top = 1.0 if images.max() <= 2 else 255.0
    pixels = (images / top).clamp(0, 1).mul(255).to(torch.uint8)[:, :3]
    pixels = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] != 3 else pixels
    side = max(MIN_SIDE_PIXELS, *pixels.shape[2:])
    columns = min(4, len(pixels))
    sheet = Image.new("RGB", (columns * (side + 4), -(-len(pixels) // columns) * (side + 4)), "white")
    for number, one in enumerate(pixels):
        tile = Image.fromarray(one.permute(1, 2, 0).contiguous().numpy())
        tile.thumbnail((side, side))
        tile = tile.resize((side, side), Image.Resampling.NEAREST) if max(tile.size) < side else tile
        sheet.paste(tile, (number % columns * (side + 4) + 2, number // columns * (side + 4) + 2))
    return PngImage.of(sheet)
