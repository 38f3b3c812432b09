"""Predicts the samples of standard input as they arrive."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO

from drivetrain.data.formats import csv_dialect, table_file
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.load_data import load_new
from drivetrain.data.notes import format_note
from drivetrain.errors import DataError, SpecError
from drivetrain.inference import predictions, stdin_records
from drivetrain.inference.stdin_records import NAME, Record
from drivetrain.models import forward
from drivetrain.system.console import say_aside

if TYPE_CHECKING:
    import torch

    from drivetrain.data.dataset import NewSamples
    from drivetrain.inference.predictions import TitledAnswer
    from drivetrain.models.saved_model import SavedModel

_PLACE = re.compile(rf"(no row of )?\S*{NAME}\.\w+( (row|line) \d+)?( \(line \d+\))?:?( is usable;)? ?")
"""Where the message of a file with one record places its problem."""


@dataclass
class PredictStream:
    """A trained model, and what is needed to predict a group of records."""

    trained: SavedModel
    device: torch.device
    every: bool
    """Whether to give the probability of every class."""
    csv: Mapping[str, str] = field(default_factory=dict)
    """How a CSV is written, with the keys of `data.csv`."""
    count: int = 0
    """Samples predicted so far."""
    left_out: int = 0
    """Records that were left out so far."""
    _printed_notes: set[str] = field(default_factory=set)

    def predict(self, stream: BinaryIO, written: Callable[[], None]) -> Iterator[TitledAnswer]:
        """The title of each sample, its path or line, and its prediction by head.

        Args:
            stream: the input.
            written: called when the answers of a group were taken and more input is awaited.

        Raises:
            DataError: if no sample can be used.
            SpecError: if samples of this model cannot come in lines.
        """
        kind, pre = self.trained.preprocessing["kind"], self.trained.preprocessing
        files = csv_dialect.of_model(pre, self.csv)
        if kind == "images":
            suffixes = (*table_file.SUFFIXES, ".npz")
            records, suffix, header = stdin_records.read_paths(stream, suffixes), "", b""
        elif kind == "series" and pre["form"] == "long":
            yield from self._predict_whole(stream, files)
            return
        elif columns := _list_columns(pre):
            table = stdin_records.read_table(stream, columns, files)
            records, suffix, header = table.records, table.suffix, table.header
        else:
            raise SpecError(
                f"-: a model of kind `{kind}` reads its samples from files",
                "standard input for images (a path in each line), texts, tables, and series in a table",
                "name files or folders",
            )
        with TemporaryDirectory() as folder:
            file = Path(folder, f"{NAME}{suffix}")
            for group in stdin_records.group_records(records):
                for record in group:
                    if record.problem:
                        self._leave_out(record, record.problem)
                usable = [record for record in group if not record.problem]
                for used, data in self._read_halves(usable, file, header, files):
                    yield from self._predict(data, [_make_title(record, suffix) for record in used])
                written()
        self._check_any()

    def _read_halves(
        self, group: Sequence[Record], file: Path, header: bytes, files: CsvFiles
    ) -> Iterator[tuple[Sequence[Record], NewSamples]]:
        """The records that can be read, in as few parts as possible; the others are reported.

        A group is halved until each part can be read whole: what is read of a record must not depend on the others.
        """
        if not group:
            return
        try:
            data = self._read(group, file, header, files)
        except DataError as error:
            problem = error.given
        else:
            if len(data.split) == len(group):
                self._print_notes(data.notes)
                yield group, data
                return
            problem = "\n".join(data.notes)
        if len(group) == 1:
            self._leave_out(group[0], _shorten_problem(problem))
            return
        half = len(group) // 2
        yield from self._read_halves(group[:half], file, header, files)
        yield from self._read_halves(group[half:], file, header, files)

    def _read(self, group: Sequence[Record], file: Path, header: bytes, files: CsvFiles) -> NewSamples:
        if file.suffix:
            file.write_bytes(header + b"".join(record.content for record in group))
        paths = [file] if file.suffix else [Path(record.content.decode("utf-8", "surrogateescape")) for record in group]
        return load_new(paths, self.trained.preprocessing, self.trained.heads, labelled=False, csv=files)

    def _predict_whole(self, stream: BinaryIO, files: CsvFiles) -> Iterator[TitledAnswer]:
        """Windows of a long table, which need rows that come later: nothing is predicted before the end."""
        say_aside(f"predict: reading {NAME} to its end, since a window has many rows")
        with TemporaryDirectory() as folder:
            file = stdin_records.store_whole(stream, Path(folder))
            try:
                data = load_new([file], self.trained.preprocessing, self.trained.heads, labelled=False, csv=files)
            except DataError as error:
                raise stdin_records.name_stdin(error, file) from None
            self._print_notes(data.notes)
            titles = [data.split.title(index).replace(file.name, NAME) for index in range(len(data.split))]
            yield from self._predict(data, titles)

    def _predict(self, data: NewSamples, titles: Sequence[str]) -> Iterator[TitledAnswer]:
        heads = self.trained.heads
        batches = forward.compute_outputs(self.trained.network, heads, data.split, data.prepare, self.device)
        answers = predictions.compute_answers(batches, heads, data.split, with_probabilities=self.every)
        for title, (_, answer) in zip(titles, answers, strict=True):
            self.count += 1
            yield title, answer

    def _leave_out(self, record: Record, problem: str) -> None:
        self.left_out += 1
        say_aside(f"data: line {record.line} is left out: {problem}")

    def _print_notes(self, new_notes: Sequence[str]) -> None:
        """Print each note once; those on how a file is written come with every group."""
        for note in new_notes:
            if note not in self._printed_notes:
                self._printed_notes.add(note)
                say_aside(format_note(note))

    def _check_any(self) -> None:
        if self.count:
            return
        raise DataError(
            f"{NAME}: {f'none of {self.left_out:,} lines can be used' if self.left_out else 'no samples came'}",
            "at least one sample",
            "see the lines above" if self.left_out else "check the command before the pipe",
        )


def _list_columns(preprocessing: Mapping[str, Any]) -> list[str]:
    """The columns that a row must have; empty if the model's samples are no rows."""
    match preprocessing["kind"]:
        case "texts":
            from drivetrain.data.text import text_data

            return text_data.text_columns(preprocessing)
        case "table":
            from drivetrain.data.tables import features

            return features.from_json(preprocessing).file_columns
    return []


def _make_title(record: Record, suffix: str) -> str:
    return f"line {record.line}" if suffix else record.content.decode("utf-8", "surrogateescape")


def _shorten_problem(problem: str) -> str:
    """What is wrong with the one sample that was read from a file."""
    last = problem.splitlines()[-1].strip()
    return _PLACE.sub("", last.removeprefix("left out: ").removeprefix("data: "))
