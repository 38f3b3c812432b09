"""Loads samples that were not part of the training, with the module that read the training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.data.dataset import Head, NewSamples
from drivetrain.data.formats import csv_dialect, table_paths
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.source import Source
from drivetrain.errors import CheckpointError, DataError
from drivetrain.job.user_files import suggest_nearest_path


def read(
    paths: Sequence[Path],
    preprocessing: dict[str, Any],
    heads: dict[str, Head],
    *,
    labelled: bool,
    csv: Mapping[str, str] | CsvFiles | None = None,
    bad_samples: float = 1.0,
) -> NewSamples:
    """Read new samples, preprocessed exactly as the validation samples were.

    Args:
        paths: files or folders, of the kinds that the task trains on.
        preprocessing: as stored with the model.
        heads: the outputs of the model, by name.
        labelled: whether to read targets.
        csv: how CSV files are written, as in the spec; what it does not set is detected from the files. A `CsvFiles`
            carries what was detected from one call to the next.
        bad_samples: largest share of unusable samples that is accepted.

    Raises:
        DataError: if no sample can be used, or a label is not among the classes.
        CheckpointError: if this version does not know such a model.
    """
    files = csv if isinstance(csv, CsvFiles) else csv_dialect.of_model(preprocessing, csv or {})
    _check_paths_exist(paths)
    kind = preprocessing.get("kind")
    if kind in ("texts", "table", "series"):
        paths = [table_paths.find_table(path, "data") if path.is_dir() else path for path in paths]
    if kind == "own":  # the user's Python code reads the data
        from drivetrain.data.custom import custom_data as custom

        samples = custom.read(paths, preprocessing, heads, labelled=labelled)
    else:
        sources = [Source(path, "data", files, bad_samples, labelled) for path in paths]
        samples = _find_reader(kind)(sources, preprocessing, heads)
    samples.notes[:0] = files.notes
    return samples


def _find_reader(kind: object) -> Callable[..., NewSamples]:
    """The function that reads samples of a kind; each is imported only if needed, with the libraries it imports.

    Raises:
        CheckpointError: for an unknown kind.
    """
    match kind:
        case "images":
            from drivetrain.data.images import load_new as images

            return images.read
        case "texts":
            from drivetrain.data.text import text_data as text

            return text.read
        case "table":
            from drivetrain.data.tables import table_data as tables

            return tables.read
        case "series":
            from drivetrain.data.series import series_data as series

            return series.read
    raise CheckpointError(
        f"the model has an unknown kind of preprocessing: {kind!r}",
        "images, texts, table, series",
        "use the version of drivetrain that wrote the model",
    )


def _check_paths_exist(paths: Sequence[Path]) -> None:
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        suggestions = [hint for path in missing if (hint := suggest_nearest_path([Path()], path))]
        raise DataError(
            f"{', '.join(missing[:5])}: not there",
            "files or folders that this process can access",
            " ".join(suggestions) or "check the spelling; a container can access only the project and mounted folders",
        )
