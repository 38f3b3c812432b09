"""TensorBoard's files: scalars and pictures come back from them; their failure ends no run."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drivetrain.errors import StorageError
from drivetrain.tracking.metrics_log import MetricsLog
from drivetrain.tracking.tensorboard import TensorBoardWriter
from drivetrain.training.checkpoints import checkpoint
from drivetrain.training.train import show_first_batch, tile
from drivetrain.training.train import train as train_run
from tests import tiny
from tests.messages import begins_with, says
from tests.supervisor.tiny_run import train


def read(folder: Path) -> Any:
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0, "scalars": 0})
    events.Reload()
    return events


def test_a_run_shows_numbers_and_batch(job: Path) -> None:
    done = train(job)
    assert done.returncode == 0, done.stderr
    run = job.parent / "runs" / "tiny-001"
    board = read(run / "tensorboard")
    tags = board.Tags()
    assert {"train/loss", "lr", "grad_norm", "validation/accuracy"} <= set(tags["scalars"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert [event.value for event in board.Scalars("train/loss")] == pytest.approx(losses)
    assert tags["images"] == ["batch/as the network sees it"]
    (batch,) = board.Images("batch/as the network sees it")
    assert Image.open(io.BytesIO(batch.encoded_image_string)).size == (batch.width, batch.height) == (400, 400)


def test_a_run_that_cannot_begin_leaves_no_thread_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that draws while Python takes itself apart aborts the process: exit 134 instead of the error's own."""

    def fail_to_save(*arguments: object) -> None:
        raise StorageError("no space", "some", "make some")

    before = set(threading.enumerate())
    tiny_run = tiny.assemble_run(tmp_path, tiny.job())
    monkeypatch.setattr(checkpoint, "save", fail_to_save)
    with pytest.raises(StorageError):
        train_run(tiny_run)
    thread_names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in thread_names if name in ("tensorboard", "monitor")] == []


def test_a_resumed_run_hides_repeated_steps_in_tensorboard(tmp_path: Path) -> None:
    for after, steps in ((None, (1, 2, 3)), (1, (2, 3))):
        board = TensorBoardWriter(tmp_path / "tensorboard", after, pytest.fail)
        for step in steps:
            board.put(step, {"train/loss": float(step)})
        board.close()
    assert [event.step for event in read(tmp_path / "tensorboard").Scalars("train/loss")] == [1, 2, 3]


def test_a_failing_tensorboard_writer_is_an_event(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    reports: list[str] = []
    log = MetricsLog(tmp_path, report=reports.append)
    log.write(1, 0, {"train/loss": 1.0})
    log.board.thread.join(timeout=60)
    log.write(2, 0, {"train/loss": 0.5})
    log.close()
    assert len(reports) == 1
    assert begins_with(reports[0], "tensorboard-logging-stopped-training")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_batch_that_cannot_be_shown_is_an_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_run = tiny.assemble_run(tmp_path, tiny.job())
    tiny_run.metrics = MetricsLog(tmp_path)

    def fail_to_prepare(*arguments: object) -> None:
        raise ValueError("no such picture")

    tiny_run.dataset.prepare = fail_to_prepare  # type: ignore[assignment]
    show_first_batch(tiny_run)
    tiny_run.metrics.close()
    assert says(capsys.readouterr().out, "first-batch-could-drawn")


def test_showing_the_batch_changes_no_bit(tmp_path: Path) -> None:
    loss_lists = []
    for is_shown in (False, True):
        tiny_run = tiny.assemble_run(tmp_path, tiny.job(train="ema: 0.9"))
        if is_shown:
            tiny_run.metrics = MetricsLog(tmp_path)
            show_first_batch(tiny_run)
            tiny_run.metrics.close()
        loss_lists.append(tiny.losses(tiny_run, 6))
    assert loss_lists[0] == loss_lists[1]


@pytest.mark.parametrize("channels", [1, 3])
def test_images_come_back_in_their_colours(channels: int) -> None:
    """Four flat images; scaled by mean and deviation, shown as they were."""
    values = torch.tensor([0.0, 0.25, 0.5, 1.0]).view(4, 1, 1, 1).expand(4, channels, 8, 8)
    mean, std = [0.5] * channels, [0.25] * channels
    sheet = tile((values - 0.5) / 0.25, mean, std)
    colours = [sheet.getpixel((number * 100 + 50, 50)) for number in range(4)]
    assert colours == [(round(v), round(v), round(v)) for v in (0, 63, 127, 255)]
