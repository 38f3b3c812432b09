"""`drivetrain predict`: predictions of a trained model for new samples, as CSV or JSON lines.

CSV has a row per sample: `sample` (path, or file and row), then for each output `prediction` and `probability`, with
the prefix `<head>.` for named heads. JSON lines have the same keys, with named heads under `heads`. In CSV, text
that a spreadsheet would run as a formula gets an apostrophe; JSON lines keep it as it is. Samples that cannot be read
are listed on stderr and have no row. Predictions are computed in fp32, even if the training used another precision.
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
from typing import IO, TYPE_CHECKING, Any

from drivetrain.data.notes import format_note
from drivetrain.errors import StorageError
from drivetrain.hardware import device_check
from drivetrain.inference import thread_limits
from drivetrain.system.console import say_aside
from drivetrain.system.printable import escape_cell, escape_row, printable, printable_json
from drivetrain.tracking.live import time_left

if TYPE_CHECKING:
    from drivetrain.data.dataset import NewSamples
    from drivetrain.data.formats.csv_dialect import CsvFiles
    from drivetrain.inference.annotated_table import InputTable, TableForm
    from drivetrain.inference.predictions import Answer, TitledAnswer

TERMINAL = "DRIVETRAIN_TERMINAL"
"""Set in a container whose stdout is a user's terminal."""
LABEL_SEPARATOR = ";"
"""Separates the classes in a CSV cell of a multi-label head."""


@dataclass(frozen=True)
class PredictRequest:
    """The options of `drivetrain predict`."""

    run: Path
    inputs: Sequence[Path]
    output: Path | None = None
    """stdout if None; the suffix .jsonl means one JSON line per sample, any other one CSV."""
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
        SpecError: if a column of the input has the name of a prediction.
        StorageError: if the output cannot be written.
    """
    machine = thread_limits.limit_threads()
    import torch

    from drivetrain.data import load_data
    from drivetrain.data.formats import csv_dialect
    from drivetrain.inference import annotated_table, predictions
    from drivetrain.models import forward, saved_model

    trained = saved_model.load(request.run, consent=request.run_code)
    files = csv_dialect.of_model(trained.preprocessing, request.csv)
    data = load_data.load_new(request.inputs, trained.preprocessing, trained.heads, labelled=False, csv=files)
    table = _open_input_table(request, data, files)
    for note in data.notes:
        say_aside(format_note(note))
    start_time = time.monotonic()
    device = torch.device(device_check.select_usable_device(machine, say_aside))
    batches = forward.compute_outputs(trained.network, trained.heads, data.split, data.prepare, device)
    is_for_terminal = _is_for_terminal(request)
    if not is_for_terminal:
        batches = time_left.report_progress(batches, len(data.split), "predict")
    answers = predictions.compute_answers(batches, trained.heads, data.split, with_probabilities=request.probabilities)
    with _open_output(request.output, table.form.encoding if table else "utf-8") as file:
        if table and data.row_numbers is not None:
            form = table.form
            cells = ({name: escape_cell(value) for name, value in _list_cells(answer, form)} for _, answer in answers)
            annotated_table.write(table, data.row_numbers.tolist(), cells, file)
        else:
            _write(request, answers, file)
    seconds = time.monotonic() - start_time
    count = len(data.split)
    if is_for_terminal:
        return 0  # the line would appear among the rows
    say_aside(f"{_format_count(count)} in {seconds:.2f} s ({count / max(seconds, 1e-9):,.0f} samples/s)")
    return 0


def _open_input_table(request: PredictRequest, data: NewSamples, files: CsvFiles) -> InputTable | None:
    """Open the table whose columns the output repeats; None for an output of predictions alone."""
    from drivetrain.data.formats import table_paths
    from drivetrain.inference import annotated_table

    if data.row_numbers is not None and request.output is not None and not _is_jsonl(request):
        path = request.inputs[0]
        path = table_paths.find_table(path, "data") if path.is_dir() else path
        return annotated_table.open_table(path, files)
    return None


def _is_jsonl(request: PredictRequest) -> bool:
    return request.output is not None and request.output.suffix.lower() == ".jsonl"


def _is_for_terminal(request: PredictRequest) -> bool:
    """Return whether a person reads the predictions on a terminal."""
    return request.output is None and (sys.stdout.isatty() or bool(os.environ.get(TERMINAL)))


def _write(request: PredictRequest, answers: Iterable[TitledAnswer], file: IO[str]) -> None:
    """Write the predictions; control characters are escaped on a terminal."""
    if _is_jsonl(request):
        _write_lines(answers, file)
    else:
        _write_csv(answers, file, printable if _is_for_terminal(request) else str)


def _format_count(count: int) -> str:
    return "1 sample" if count == 1 else f"{count:,} samples"


@contextlib.contextmanager
def _open_output(output: Path | None, encoding: str = "utf-8") -> Iterator[IO[str]]:
    """Open the output; a file gets its final name once it is complete."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        # Characters that the encoding lacks are written as in XML; UTF-8 lacks only surrogates.
        errors = "backslashreplace" if encoding.startswith("utf") else "xmlcharrefreplace"
        with temporary.open("w", encoding=encoding, errors=errors, newline="") as file:
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


def _write_lines(answers: Iterable[TitledAnswer], file: IO[str]) -> None:
    for title, answer in answers:
        row = {"sample": title, **(answer.get("", {"heads": answer}))}
        file.write(printable_json(json.dumps(row, ensure_ascii=False)) + "\n")


def _write_csv(answers: Iterable[TitledAnswer], file: IO[str], printed: Callable[[str], str] = str) -> None:
    writer = csv.writer(file, lineterminator="\n")
    for number, (title, answer) in enumerate(answers):
        columns = dict(_list_cells(answer))
        if number == 0:
            writer.writerow(map(printed, map(str, escape_row(["sample", *columns]))))
        row = escape_row([title, *columns.values()])
        writer.writerow(printed(cell) if isinstance(cell, str) else cell for cell in row)


def _list_cells(answer: Mapping[str, Answer], form: TableForm | None = None) -> Iterator[tuple[str, object]]:
    """Yield column names and cells of the prediction of a sample, with nested values flattened.

    With the form of a table that people read, numbers have its decimal sign, and probabilities four decimals at most.
    """
    for head, values in answer.items():
        for key, value in values.items():
            name = f"{head}.{key}" if head else key
            is_share = key != "prediction"
            if isinstance(value, dict):
                for column, number in value.items():
                    yield f"{name}.{column}", _format_cell(number, form, is_share)
            elif isinstance(value, list):
                cells = (escape_cell(_format_cell(member, form, is_share)) for member in value)
                yield name, LABEL_SEPARATOR.join(map(str, cells))
            else:
                yield name, _format_cell(value, form, is_share)


def _format_cell(value: Any, form: TableForm | None, is_share: bool) -> Any:
    """Format a prediction or a probability for a cell, exact without a form."""
    if form is None:
        return value
    return form.format(round(value, 4) if is_share else value)
