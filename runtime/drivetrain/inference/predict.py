"""`drivetrain predict`: predictions of a trained model for new samples, as CSV or JSON lines.

CSV has a row per sample: `sample` (path, or file and row), then for each output `prediction` and `probability`, with
the prefix `<head>.` for named heads. JSON lines have the same keys, those of named heads under `heads`. In CSV, text
that a spreadsheet would run as a formula gets an apostrophe; JSON lines keep it as it is. Samples that cannot be read
are listed on stderr and have no row. Predictions are computed in fp32, even if the training used another precision.
The input `-` is standard input: each prediction is written as soon as it is known.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from drivetrain.data import notes
from drivetrain.errors import SpecError, StorageError
from drivetrain.hardware import device_check
from drivetrain.inference import thread_limits
from drivetrain.system.console import say_aside
from drivetrain.system.printable import escape_cell, escape_row, printable, printable_json
from drivetrain.tracking.live import time_left

if TYPE_CHECKING:
    import torch

    from drivetrain.inference.predictions import Answer
    from drivetrain.models.saved_model import SavedModel

TERMINAL = "DRIVETRAIN_TERMINAL"
"""Set in a container whose stdout is a user's terminal."""
STDIN = Path("-")
"""Stands for standard input on the command line."""
SEVERAL = ";"
"""Separates the classes in a CSV cell of a multi-label head."""


@dataclass(frozen=True)
class PredictRequest:
    """The options of `drivetrain predict`."""

    run: Path
    inputs: Sequence[Path]
    form: str = "csv"
    """csv or jsonl."""
    output: Path | None = None
    """stdout if None."""
    probabilities: bool = False
    """Whether to write the probability of every class."""
    run_code: bool = False
    """Whether the code of a model folder outside of its run may be run."""
    csv: Mapping[str, str] = field(default_factory=dict)
    """How CSV files are written, with the keys of `data.csv`."""


def predict(request: PredictRequest) -> int:
    """Write the predictions; returns 0.

    Raises:
        CheckpointError: if there is no trained model.
        DataError: if no sample can be read.
        SpecError: if standard input is named beside others, or the model's samples cannot come in lines.
        StorageError: if the output cannot be written.
    """
    machine = thread_limits.limit()
    import torch

    from drivetrain.data import load_new
    from drivetrain.inference import predictions
    from drivetrain.models import forward, saved_model

    trained = saved_model.load(request.run, consent=request.run_code)
    if STDIN in request.inputs:
        return _stream(request, trained, torch.device(device_check.usable_device(machine, thread_limits.tell)))
    data = load_new.read(request.inputs, trained.preprocessing, trained.heads, labelled=False, csv=request.csv)
    for note in data.notes:
        say_aside(notes.line(note))
    started = time.monotonic()
    device = torch.device(device_check.usable_device(machine, thread_limits.tell))
    batches = forward.outputs(trained.network, trained.heads, data.split, data.prepare, device)
    among = _to_terminal(request)
    if not among:
        batches = time_left.report_progress(batches, len(data.split), "predict")
    answers = predictions.of(batches, trained.heads, data.split, every=request.probabilities)
    with _sink(request.output) as file:
        _write(request, answers, file)
    seconds = time.monotonic() - started
    count = len(data.split)
    if among:
        return 0  # the line would appear among the rows
    say_aside(f"{_samples(count)} in {seconds:.2f} s ({count / max(seconds, 1e-9):,.0f} samples/s)")
    return 0


def _to_terminal(request: PredictRequest) -> bool:
    """Whether a person reads the predictions on a terminal."""
    return request.output is None and (sys.stdout.isatty() or bool(os.environ.get(TERMINAL)))


def _write(request: PredictRequest, answers: Iterable[tuple[str, dict[str, Answer]]], file: IO[str]) -> None:
    """Write the predictions: to a program or a file as they are, to a terminal without what would control it."""
    if request.form != "csv":
        _lines(answers, file)
    else:
        _csv(answers, file, printable if _to_terminal(request) else str)


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count:,} samples"


def _stream(request: PredictRequest, trained: SavedModel, device: torch.device) -> int:
    """Predict what comes from standard input, as it comes."""
    from drivetrain.inference.predict_stream import PredictStream

    if len(request.inputs) > 1:
        raise SpecError("-: standard input beside other inputs", "one of them", "remove - or the others")
    if sys.stdin.isatty():
        say_aside("predict: reading what you type; Ctrl-D ends it")
    stream_predictor = PredictStream(trained, device, request.probabilities, request.csv)
    # Not sys.stdin, and never closed: both would wait for the thread that reads, which may never end.
    stream = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    with _sink(request.output) as file:
        _write(request, stream_predictor.answers(stream, file.flush), file)
    left_out = f", {stream_predictor.lost:,} lines left out" if stream_predictor.lost else ""
    say_aside(f"{_samples(stream_predictor.count)}{left_out}")
    return 0


@contextlib.contextmanager
def _sink(output: Path | None) -> Iterator[IO[str]]:
    """The open output; a file is renamed to its final name once it is complete."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file
        temporary.replace(output)
    except OSError as error:
        raise StorageError(
            f"{output}: {error.strerror or error}",
            "a file in a folder that this user can write to",
            "choose another one with --output",
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _lines(answers: Iterable[tuple[str, dict[str, Answer]]], file: IO[str]) -> None:
    for title, answer in answers:
        row = {"sample": title, **(answer.get("", {"heads": answer}))}
        file.write(printable_json(json.dumps(row, ensure_ascii=False)) + "\n")


def _csv(answers: Iterable[tuple[str, dict[str, Answer]]], file: IO[str], printed: Callable[[str], str] = str) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for number, (title, answer) in enumerate(answers):
        columns = dict(_cells(answer))
        if number == 0:
            writer.writerow(map(printed, map(str, escape_row(["sample", *columns]))))
        row = escape_row([title, *columns.values()])
        writer.writerow(printed(cell) if isinstance(cell, str) else cell for cell in row)


def _cells(answer: Mapping[str, Answer]) -> Iterator[tuple[str, object]]:
    """Column names and cells, with nested values flattened."""
    for head, parts in answer.items():
        for key, value in parts.items():
            name = f"{head}.{key}" if head else key
            if isinstance(value, dict):
                yield from ((f"{name}.{inner}", share) for inner, share in value.items())
            else:
                yield (
                    name,
                    SEVERAL.join(str(escape_cell(member)) for member in value) if isinstance(value, list) else value,
                )
