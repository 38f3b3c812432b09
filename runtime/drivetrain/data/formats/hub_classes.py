"""Names of classes that the README.md of a dataset on the Hugging Face hub declares, for tables in the hub's cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from drivetrain.data.formats import shards
from drivetrain.pretrained.hub_dataset_files import README, read_header


def find_names(path: Path) -> dict[str, list[str]]:
    """Class names by column of the dataset that a file in the cache belongs to; none for other files."""
    folder = shards.snapshot(path)
    if folder is None:
        return {}
    try:
        readme = (folder / README).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return read_declared(readme, path.relative_to(folder))


def read_declared(readme: str, path: Path) -> dict[str, list[str]]:
    """Class names by column, from the configuration whose name is a part of the path, or from the only one."""
    dataset_info = read_header(readme).get("dataset_info")
    configurations = [
        row for row in (dataset_info if isinstance(dataset_info, list) else [dataset_info]) if isinstance(row, dict)
    ]
    matching = [row for row in configurations if str(row.get("config_name")) in path.parts] or configurations
    if len(matching) != 1:
        return {}
    features = matching[0].get("features")
    rows = [row for row in features if isinstance(row, dict)] if isinstance(features, list) else []
    return dict(_iterate_class_names(rows))


def _iterate_class_names(rows: list[dict[str, object]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each column of classes with the names of its classes, in the order of their numbers."""
    for row in rows:
        kind = row.get("dtype")
        label = kind.get("class_label") if isinstance(kind, Mapping) else None
        names = label.get("names") if isinstance(label, Mapping) else None
        texts = names.values() if isinstance(names, Mapping) else names if isinstance(names, list) else ()
        if any(isinstance(text, list | dict) for text in texts):
            # YAML references to lists of references would be written out to gigabytes.
            continue
        if isinstance(names, list):
            yield str(row.get("name")), [str(name) for name in names]
        elif isinstance(names, Mapping) and sorted(map(str, names)) == sorted(map(str, range(len(names)))):
            by_number = {str(number): str(name) for number, name in names.items()}
            yield str(row.get("name")), [by_number[str(number)] for number in range(len(names))]
