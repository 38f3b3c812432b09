"""A value of a model folder's config.json is edited, or an argument of its network is odd: an error that names the file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drivetrain.data import load_data
from drivetrain.errors import CheckpointError
from drivetrain.inference import predictions
from drivetrain.models import forward, saved_model
from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.pretrained.model_config import CONFIG, read_config
from tests.edited_model import write_config
from tests.messages import says
from tests.task_cases import CASES, train_case

ODD_VALUES = {"null": None, "text": "odd", "list": [[1], 2], "number": 7.5, "nested": {"odd": {"x": 1}}, "truth": True}
KINDS: dict[str, Any] = {
    "null": type(None),
    "text": str,
    "list": list,
    "number": (int, float),
    "nested": dict,
    "truth": bool,
}


def list_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of each value, of long lists of the first two."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(2, len(value))):
            yield from list_paths(value[key], (*path, key))


def change_values(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configuration without a value, or with one of another type, for each value."""
    for path in list_paths(config):
        for name in ("drop", *ODD_VALUES):
            changed = copy.deepcopy(config)
            parent: Any = changed
            for key in path[:-1]:
                parent = parent[key]
            if name == "drop":
                del parent[path[-1]]
            elif (
                isinstance(parent[path[-1]], bool) == (name == "truth") and isinstance(parent[path[-1]], KINDS[name])
            ) or (parent[path[-1]] is None or path[-1] == "group"):
                continue  # such a value can be another model's
            else:
                parent[path[-1]] = ODD_VALUES[name]
            yield f"{'.'.join(map(str, path))}: {name}", changed


def predict(model: Path, data: Path) -> str:
    trained = saved_model.load(model)
    samples = load_data.load_new([data], trained.preprocessing, trained.heads, labelled=True)
    batches = forward.compute_outputs(
        trained.network, trained.heads, samples.split, samples.prepare, torch.device("cpu")
    )
    answers = predictions.compute_answers(batches, trained.heads, samples.split, with_probabilities=True)
    return json.dumps(list(answers), default=str)


@pytest.mark.parametrize("name", ["image labels", "linear texts", "series", "series numbers", "table", "table numbers"])
def test_an_edited_value_is_refused(tmp_path: Path, name: str) -> None:
    train_case(CASES[name], tmp_path)
    model = tmp_path / "run" / "model"
    count = 0
    for _, changed in change_values(read_config(model)):
        (model / CONFIG).write_text(json.dumps(changed))
        with pytest.raises(CheckpointError, match=CONFIG):
            read_config(model)
        count += 1
    assert count > 200


def change_arguments(arguments: dict[str, Any]) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """The arguments without a value, or with an odd one, and whether that is of the same type."""
    for path in list_paths(arguments):
        for name, odd in {"drop": None, **ODD_VALUES, "zero": 0, "minus": -1, "endless": (1 << 32) + 1}.items():
            changed = copy.deepcopy(arguments)
            parent: Any = changed
            for key in path[:-1]:
                parent = parent[key]
            # Of the configuration of a library the types are not known.
            is_same = type(odd) is type(parent[path[-1]]) or (isinstance(odd, int) and path[0] == "config")
            is_same |= isinstance(odd, int | float) and isinstance(parent[path[-1]], float) and odd is not True
            parent[path[-1]] = odd
            if name == "drop":
                del parent[path[-1]]
            yield f"{'.'.join(map(str, path))}: {name}", is_same, changed


@pytest.mark.parametrize(
    "name", ["series", "tabm", "image arrays", pytest.param("one text head", marks=pytest.mark.slow)]
)
def test_an_odd_argument_of_the_network_is_named(tmp_path: Path, name: str) -> None:
    """A value of the right type was a traceback in the middle of the first batch, or one without end."""
    case = CASES[name]
    train_case(case, tmp_path)
    model, data = tmp_path / "run" / "model", tmp_path / f"held{case.suffix}"
    config, expected = json.loads((model / CONFIG).read_text()), predict(model, data)
    refused, wrong = 0, []
    for change, is_same_type, changed in change_arguments(config["arguments"]):
        write_config(model, config | {"arguments": changed})
        try:
            wrong += [] if predict(model, data) == expected or is_same_type else [change]
        except CheckpointError as error:
            wrong += [] if CONFIG in error.given else [f"{change}: {error}"]
            refused += 1
    assert not wrong
    assert refused > 50


def test_an_edit_of_a_right_value_is_refused(tmp_path: Path) -> None:
    """Another number of attention heads, or another scale, gave other answers without a word."""
    case = CASES["table"]
    train_case(case, tmp_path)
    model, data = tmp_path / "run" / "model", tmp_path / f"held{case.suffix}"
    text, expected = (model / CONFIG).read_text(), predict(model, data)
    config = json.loads(text)
    (model / CONFIG).write_text(json.dumps(dict(sorted(config.items())), indent=4))
    assert predict(model, data) == expected
    config["preprocessing"]["numeric"][0]["mean"] += 1
    (model / CONFIG).write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        predict(model, data)
    assert says(str(caught.value), "config-was-edited")
    (model / CONFIG).write_text(text)
    weights = bytearray((model / WEIGHTS).read_bytes())
    weights[-9] ^= 1
    (model / WEIGHTS).write_bytes(weights)
    with pytest.raises(CheckpointError) as caught:
        predict(model, data)
    assert says(str(caught.value), "weights-were-changed")
