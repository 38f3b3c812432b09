"""The description of a kind of data: what the rest of the package asks about it, and the functions that know it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drivetrain.job import Job
from drivetrain.job.workload import Workload

MANIFESTS = (".csv", ".tsv", ".jsonl")
"""Endings of tables that name sample files."""


@dataclass(frozen=True)
class Lazy:
    """A function of the package that is imported when it is called, so that a description loads no library."""

    path: str
    """Its module and name below `drivetrain`, such as `tasks.image.network.build`."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Import and call the function."""
        module, _, name = self.path.rpartition(".")
        return getattr(importlib.import_module(f"drivetrain.{module}"), name)(*arguments, **settings)


def do_nothing(*arguments: Any) -> None:
    """Stand for a function that a kind of data does not need."""


@dataclass(frozen=True)
class FileKind:
    """Files that are samples, by their names, and what messages call them."""

    noun: str
    """Such as `image`; `s` follows for several."""
    extensions: tuple[str, ...]
    """Endings of files that are read."""
    unread: tuple[str, ...]
    """Endings of such files that are not read: a class must not lose them silently."""
    advice: str
    """What to do with files of other kinds."""
    can_be_in_tables: bool = False
    """Whether the cells of a table, or an array, can hold them."""

    @property
    def article(self) -> str:
        """Noun with its article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"

    @property
    def nouns(self) -> str:
        """Noun for several."""
        return f"{self.noun}s"


@dataclass(frozen=True, kw_only=True)
class Modality:
    """A kind of data. All functions of one name have the same parameters; tests/tasks/test_contract.py compares them."""

    kind: str
    """Name that is stored with a model."""
    job: type[Job]
    """Base class of its jobs."""
    tasks: dict[str, type[Job]]
    """Its tasks by name."""
    expected: Workload
    """Layers of its usual networks, and whether samples differ in length: for plans before the network is known."""
    reader: Callable[..., Any] = do_nothing
    """Make the `data.reading.Reader` of a job."""
    restore: Callable[..., Any] = do_nothing
    """Restore the `data.reading.Preprocessor` of a trained model, which reads new samples."""
    load: Lazy | None = None
    """Read the training and validation data of a job, if that needs another order than `data.reading`."""
    read: Lazy | None = None
    """Read new samples for a trained model, if that needs another order than `data.reading`."""
    draft: Callable[..., Any] = do_nothing
    """Draft the spec for a table with such data; None if it holds other data."""
    draft_folder: Callable[..., Any] = do_nothing
    """Draft the spec for a folder with one folder of sample files for each class."""
    suggest: Callable[..., Any] = do_nothing
    """Suggest this kind for a table with dates that is drafted as another; None if nothing speaks for it."""
    build_network: Lazy
    """Build the network that a job names."""
    draw_inputs: Lazy
    """Draw random inputs with the shape of preprocessed samples."""
    make_features: Callable[..., Any] = do_nothing
    """Make the columns that simple models learn from; None if only the user's code knows what an input means."""
    explained: tuple[str, ...] = ()
    """Kinds of outputs that `explain` explains."""
    check_explanation: Callable[..., Any] = do_nothing
    """Explain one sample, which raises SpecError if the network cannot be explained."""
    explain: Callable[..., Any] = do_nothing
    """Explain a trained network with its validation samples."""
    list_columns: Callable[..., Any] = do_nothing
    """List the input columns, each with its places in the inputs of the network."""
    check_earlier_run: Callable[..., Any] = do_nothing
    """Check that the data keys of a job agree with the run that it starts from."""
    adapt_arguments: Callable[..., Any] = do_nothing
    """Adapt the arguments of the earlier network to the data of a job."""
    keep_decoded: Callable[..., Any] = do_nothing
    """Cache the decoded sample files of a dataset."""
    taken_from_earlier: str = ""
    """Settings that a job takes from the run that it starts from, in words."""
    sample_files: FileKind | None = None
    """Samples that are files: in a folder for each class, or named by a table."""
    has_pretrained: bool = False
    """Whether pretrained networks are known for it."""
    has_pictures: bool = False
    """Whether a sample can be shown as a picture."""
    array_suffixes: tuple[str, ...] = ()
    """Suffixes of files of arrays that a job can name in place of a table."""
    is_ordered: bool = False
    """Whether samples follow each other in time: neighbors are alike, and the last ones are the validation data."""
    is_user_code: bool = False
    """Whether code of the user reads the data."""
    prefers_loss: bool = False
    """Whether the loss chooses the best checkpoint among classes that are only somewhat uneven."""
    notes_classes: bool = False
    """Whether `load` notes the numbers of samples of each class."""

    @property
    def has_sample_files(self) -> bool:
        """Whether samples can be files."""
        return self.sample_files is not None

    @property
    def reads_one_table(self) -> bool:
        """Whether a file of data holds all of its samples."""
        return not (self.has_sample_files or self.is_user_code)
