"""Drafts a spec by looking at the data: kind of data, task that fits, and the pretrained network on request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from drivetrain.data import file_paths, time_order
from drivetrain.data.formats import csv_dialect, table_file, table_paths
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.formats.shards import SHARD
from drivetrain.data.notes import list_names
from drivetrain.data.source import Source
from drivetrain.data.survey import (
    array_draft,
    settings,
    table_draft,
    table_sample,
)
from drivetrain.data.survey.settings import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import TableSample
from drivetrain.errors import DataError, SpecError
from drivetrain.job.draft import Draft, Entry, quote
from drivetrain.job.model import RESNET_WEIGHTS
from drivetrain.job.user_files import suggest_nearest_path
from drivetrain.system.files import parse_json
from drivetrain.system.run_files import JOB_FILE
from drivetrain.tasks import JOBS, MODALITIES, Modality, modality_of

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
OPTION = "--pretrained"
KEYS_OF_WEIGHTS = ("image_size", "fit", "augment")
"""Keys that a draft with pretrained weights omits: the folder of the weights sets size and fit, and augmentation
would change the features in every epoch.
"""
FROZEN = "freeze: {body: true}"
REASON = (
    "frozen: one pass over the data, then its outputs are solved in seconds; without `freeze` all of it is fine-tuned, about "
    "three times as long for every epoch, and mostly better"
)
FILE_SUFFIXES = (*table_file.SUFFIXES, ".npz")
SHORT_TEXT_WORDS = 15
"""Smallest number of words of a long text; a shorter text may be one column of many, such as a name."""
MOST_FEATURES_BESIDE_SHORT_TEXT = 5
"""Largest number of feature columns of a text job with a text of fewer than SHORT_TEXT_WORDS words."""
MOST_FEATURES_BESIDE_LONG_TEXT = 12
"""Largest number of feature columns of a text job with a longer text."""
POSSIBLE_DATA = (
    "a folder with one folder of images or sounds for each class, a .csv, .tsv, .jsonl or .parquet table, or an .npz"
)


def look(request: SurveyRequest) -> Draft:
    """Draft a spec for a folder or a file.

    Raises:
        DataError: if no task fits the data, or the data cannot be read.
        SpecError: if an option does not fit the data.
    """
    path = request.path
    try:
        if not os.path.lexists(path):
            near = suggest_nearest_path([Path("/" if path.is_absolute() else ".")], str(path))
            raise DataError(f"{KEY}: {path} is not there", POSSIBLE_DATA, near or "check the spelling")
        draft = _draft_folder(request, path) if path.is_dir() else _draft_file(request, path)
        return start_from_pretrained(request, draft) if request.pretrained else draft
    except OSError as error:
        raise DataError(
            f"{KEY}: {path} cannot be read: {(error.strerror or str(error)).lower()}",
            POSSIBLE_DATA,
            "give this user the right to read it",
        ) from None


def _draft_folder(request: SurveyRequest, folder: Path) -> Draft:
    """Draft a spec for a folder: tables by split, one table, or images."""
    if splits := _find_table_splits(folder):
        return _draft_splits(request, folder, splits)
    tables = sorted(
        p for p in folder.iterdir() if p.suffix.lower() in FILE_SUFFIXES and p.is_file() and p.name[0] != "."
    )
    has_samples = _find_sample_files(entry.lower() for entry in os.listdir(folder)) is not None
    # A folder of images with a table next to them is described by the table.
    if tables and (has_samples or len(file_paths.list_subfolders(folder)) < 2):
        return _draft_file(request, _choose_table(folder, tables))
    names = (name.lower() for _, _, names in os.walk(folder) for name in names)
    draft: Draft = (_find_sample_files(names) or MODALITIES["images"]).draft_folder(request, folder)
    return draft


def _find_sample_files(names: Iterable[str]) -> Modality | None:
    """Find the kind of the first file that is a sample; None if no file is."""
    kinds = [modality for modality in MODALITIES.values() if modality.sample_files]
    for name in names:
        for modality in kinds:
            if modality.sample_files and name.endswith(modality.sample_files.extensions):
                return modality
    return None


def _find_table_splits(folder: Path) -> dict[str, str] | None:
    """Find the table of each split, for a folder with several splits or of the datasets library; else None."""
    try:
        by_split = table_paths.find_splits(folder, KEY)
    except DataError:
        return None
    is_dataset = (
        len(by_split) > 1
        or (folder / "state.json").is_file()
        or SHARD.fullmatch(Path(next(iter(by_split.values()))).name)
    )
    return by_split if is_dataset else None


def _draft_splits(request: SurveyRequest, folder: Path, splits: dict[str, str]) -> Draft:
    """Draft a spec for the training table, but with the folder as `train`: a job finds its splits by itself."""
    draft = _draft_file(request, folder / splits.get("train", splits.get("", "")))
    listed_splits = list_names([f"{name or 'the table'} is {path}" for name, path in splits.items()])
    other_entries = [entry for entry in draft.data if entry.key != "train" and entry.key not in splits]
    draft.data = [request.path_entry("train", folder, listed_splits), *other_entries]
    return draft


def _choose_table(folder: Path, tables: Sequence[Path]) -> Path:
    """Choose the table of a folder: the only table, or the table named for training."""
    train = [path for path in tables if path.stem.casefold() in ("train", "training")]
    if len(tables) > 1 and len(train) != 1:
        raise DataError(
            f"{KEY}: {folder} has {len(tables):,} files of data: {list_names([path.name for path in tables])}",
            "one of them",
            f"name it: drivetrain init {tables[0]}",
        )
    return (train or list(tables))[0]


def _draft_file(request: SurveyRequest, path: Path) -> Draft:
    suffix = path.suffix.lower()
    table_paths.check_is_table(path, KEY)
    if not path.is_file() or suffix not in FILE_SUFFIXES:
        raise DataError(
            f"{KEY}: {path} is of no known kind",
            POSSIBLE_DATA,
            f"name a folder, or a file that ends in {', '.join(FILE_SUFFIXES)}",
        )
    if suffix == ".npz":
        return array_draft.draft_arrays(request, path)
    files = CsvFiles(request.csv, csv_dialect.OPTION)
    sample = table_sample.read(path, files)
    draft = _draft_table(request, sample)
    source = Source(path, KEY)
    is_ordered = modality_of(JOBS[draft.task]).is_ordered
    if not is_ordered and (time := time_order.find_column(sample.table, source, request.targets)):
        draft.choices.insert(0, time_order.describe(time))
    draft.found += files.notes
    if request.csv and suffix in csv_dialect.SUFFIXES:
        csv_keys = ", ".join(f"{key}: {value}" for key, value in request.csv.items())
        draft.data.insert(1, Entry("csv", f"{{{csv_keys}}}", "how the file is written"))
    return draft


def _draft_table(request: SurveyRequest, sample: TableSample) -> Draft:
    """Draft a spec for a table: image paths, readings over time, texts, or independent rows."""
    drafts = (modality.draft(request, sample) for modality in MODALITIES.values())
    draft: Draft | None = next(filter(None, drafts), None)
    if draft is None:
        raise _refuse_options(request, sample)
    return draft


def draft_texts(request: SurveyRequest, sample: TableSample) -> Draft | None:
    """Draft a spec for texts and their labels; None if the table has none, or many other features."""
    if request.task not in (None, table_draft.TEXTS):
        return None
    texts = table_draft.find_text_columns(request, sample)
    is_short = sum(column.words for column in texts) < SHORT_TEXT_WORDS
    most_features = MOST_FEATURES_BESIDE_SHORT_TEXT if is_short else MOST_FEATURES_BESIDE_LONG_TEXT
    # Features of a table job: numbers, and texts with few values.
    columns = [c for c in sample.columns.values() if not c.refused and not table_sample.is_identifier(c)]
    feature_count = sum(c.kind == "number" or c.classes for c in columns)
    is_text_job = texts and (request.task or request.texts or feature_count <= most_features)
    return table_draft.draft_texts(request, sample, texts) if is_text_job else None


def draft_rows(request: SurveyRequest, sample: TableSample) -> Draft | None:
    """Draft a spec for independent rows; None if --task or --text asks for something else."""
    is_other = request.texts or request.task not in (None, table_draft.CLASSIFICATION, table_draft.REGRESSION)
    return None if is_other else table_draft.draft_table(request, sample)


def _refuse_options(request: SurveyRequest, sample: TableSample) -> SpecError:
    """Return the error for a --task or --text that does not fit the columns."""
    options = f"--task {request.task}" if request.task else f"--text {' --text '.join(request.texts)}"
    column_list = [f"{c.name} ({c.kind}, {c.different:,} different)" for c in sample.columns.values()]
    return SpecError(
        f"{options}: {sample.path} has no columns for it: {list_names(column_list, 12)}",
        "text-classification: a column of texts and one of labels; image-classification and image-regression: paths of "
        "images, and labels or numbers",
        "leave it out, or name the columns with --text and --target",
    )


def start_from_pretrained(request: SurveyRequest, draft: Draft) -> Draft:
    """Replace the network of a draft with the requested pretrained network; returns the same draft, changed.

    Raises:
        SpecError: if the task has no pretrained networks, or the folder has none.
    """
    name = str(request.pretrained)
    if not modality_of(JOBS[draft.task]).has_pretrained:
        raise SpecError(
            f"{OPTION} {name}: {draft.task} has no pretrained networks",
            ", ".join(task for task in JOBS if modality_of(JOBS[task]).has_pretrained),
            "leave it out",
        )
    draft.model = Entry("model", _describe_network(request, name, draft.task), REASON)
    draft.data = [entry for entry in draft.data if entry.key not in KEYS_OF_WEIGHTS]
    draft.train = [
        Entry("epochs", "3", "for fine-tuning; solving takes the place of all of them"),
        Entry("batch_size", "32"),
        *settings.optimizer("1e-4", "for fine-tuning"),
    ]
    return draft


def _describe_network(request: SurveyRequest, name: str, task: str) -> str:
    """Return the `model:` of the spec, in YAML notation."""
    if os.path.isdir(name):
        return _describe_folder(request, Path(name), task)
    if not HUB_NAME.fullmatch(name):
        raise SpecError(
            f"{OPTION} {name}: there is no such folder, and no name on the hub is like this",
            "a folder with config.json and model.safetensors, a name such as ORGANIZATION/NETWORK, or a run folder",
            "check the spelling",
        )
    has_pictures = modality_of(JOBS[task]).has_pictures
    if has_pictures and name in RESNET_WEIGHTS:
        return f"{{name: {name}, pretrained: true, {FROZEN}}}"
    if has_pictures and name.startswith("timm/"):
        return f"{{source: timm, name: {quote(name.removeprefix('timm/'))}, pretrained: true, {FROZEN}}}"
    return f"{{source: transformers, name: {quote(name)}, {FROZEN}}}"


def _describe_folder(request: SurveyRequest, folder: Path, task: str) -> str:
    """Return the `model:` of the spec for a folder of weights, or a run folder."""
    path = quote(request.format_path(folder))
    if (folder / JOB_FILE).is_file() or (folder / "model").is_dir():
        return f"{{source: run, name: {path}, {FROZEN}}}"
    try:
        config = parse_json((folder / "config.json").read_text("utf-8"), dict)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{OPTION} {folder}: its config.json cannot be read: {error}",
            "a folder in the layout of Hugging Face or timm, or a run folder",
            "name the folder that holds config.json and model.safetensors",
        ) from None
    architecture = config.get("architecture")
    if modality_of(JOBS[task]).has_pictures and isinstance(architecture, str):
        return f"{{source: timm, name: {quote(architecture)}, pretrained: {path}, {FROZEN}}}"
    return f"{{source: transformers, name: {path}, {FROZEN}}}"
