"""What a model looks at: importance of columns, and heat maps over pictures, stored in the run and shown in its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drivetrain.cli import main
from drivetrain.data.scales import Scale
from drivetrain.data.tables.date_features import DateFeatures
from drivetrain.data.tables.features import Category, Features, Number
from drivetrain.errors import SpecError
from drivetrain.inference import evaluate, permutation_importance
from drivetrain.inference.validation_samples import ValidationSamples
from drivetrain.models.networks import cnn
from drivetrain.report.sample_sections import list_explanation_sections
from drivetrain.system.run_files import EXPLANATION_FILE
from drivetrain.tasks.image import heat_maps
from drivetrain.tasks.image.heat_maps import compute_map
from tests.messages import says, says_only
from tests.report_page import read_page
from tests.task_cases import CASES, Case, train_case

HOSTILE = "<b>a & b</b>|\\x1b"
SIDE, SQUARE = 32, 14


def explain(run: Path) -> dict[str, Any]:
    """Explain a run; what is stored then."""
    assert evaluate.evaluate(evaluate.EvaluateRequest(run, explain=True)) == 0
    stored: dict[str, Any] = json.loads((run / EXPLANATION_FILE).read_text())
    return stored


def one_useful_column(folder: Path) -> None:
    """A class that is known from one column; the others are noise."""
    noise = np.random.default_rng(1)
    for part, count in (("train", 400), ("held", 300)):
        numbers = noise.normal(size=(count, 2))
        lines = [f'"{HOSTILE}",noise,city,kind']
        for useful, other in numbers:
            lines.append(
                f"{useful:.4f},{other:.4f},{noise.choice(['Lima', 'Quito'])},{'high' if useful > 0 else 'low'}"
            )
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


ONE_COLUMN = Case(
    one_useful_column,
    ".csv",
    "task: tabular-classification\ndata: {train: train.csv, validation: held.csv, target: kind}\n"
    "model: {hidden: [16]}\n",
)


@pytest.fixture(scope="module")
def explained_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = train_case(ONE_COLUMN, tmp_path_factory.mktemp("table"), steps=150).folder
    explain(run)
    return run


def test_the_column_that_decides_comes_first_and_noise_is_nothing(explained_table: Path) -> None:
    importance = json.loads((explained_table / EXPLANATION_FILE).read_text())["importance"]
    first, *other_columns = importance["columns"]
    assert first["column"] == HOSTILE
    assert first["mean"] > 0.3
    assert {row["column"] for row in other_columns} == {"noise", "city"}
    assert all(abs(row["mean"]) < 0.05 + 2 * row["spread"] for row in other_columns)
    assert (importance["rows"], importance["of"], importance["repetitions"]) == (300, 300, 10)


def test_the_report_shows_columns_by_their_escaped_names(explained_table: Path) -> None:
    page = read_page(explained_table)
    assert HOSTILE in page.text
    assert "b" not in page.tags
    assert says((explained_table / "report.md").read_text(), "explain-importance")


def test_the_same_seed_gives_the_same_importance(explained_table: Path) -> None:
    before = (explained_table / EXPLANATION_FILE).read_bytes()
    explain(explained_table)
    assert (explained_table / EXPLANATION_FILE).read_bytes() == before


def test_little_time_means_fewer_permutations_of_fewer_rows(
    explained_table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(permutation_importance, "MAX_SECONDS", 1e-9)
    importance = explain(explained_table)["importance"]
    assert importance["rows"] == permutation_importance.MIN_ROWS < importance["of"]
    assert importance["repetitions"] == permutation_importance.MIN_REPETITIONS
    assert says(capsys.readouterr().err, "explain-rows-permutations", 200, 300, 3)


def test_columns_without_time_are_counted(
    explained_table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thousands of columns took as long as they liked."""
    monkeypatch.setattr(permutation_importance, "LATEST_SECONDS", -1.0)
    importance = explain(explained_table)["importance"]
    assert (importance["columns"], importance["unmeasured"]) == ([], 3)
    assert says(capsys.readouterr().err, "explain-no-time-columns", 3)


def test_a_metric_that_is_no_number_cannot_get_worse(explained_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ValidationSamples, "measure", lambda samples, split: float("nan"))
    with pytest.raises(SpecError) as caught:
        explain(explained_table)
    assert says(str(caught.value), "explain-nan-validation-rows")


def test_what_was_made_of_one_column_is_permuted_together() -> None:
    numbers = (
        Number("size", Scale(0.0, 1.0), 0.0, missing=True),
        Number("since.year", Scale(0.0, 1.0), 0.0, missing=False),
        Number("since.day", Scale(0.0, 1.0), 0.0, missing=False),
    )
    dates = DateFeatures({"since": ["year", "month", "day"]})
    categories = (Category("city", ("a", "b"), False), Category("since.month", ("1", "2"), False))
    stored = {"kind": "table", **Features(numbers, categories, dates).to_json()}
    columns = permutation_importance.list_columns(stored)
    assert columns == {"size": [(0, 0), (0, 1)], "since": [(0, 2), (0, 3), (1, 1)], "city": [(1, 0)]}
    only_categories = {"kind": "table", **Features((), categories, dates).to_json()}
    assert permutation_importance.list_columns(only_categories) == {"city": [(0, 0)], "since": [(0, 1)]}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("series", {"heat", "noise"}),
        ("series numbers", {f"channel {i}" for i in range(3)}),
        ("table labels", {"age", "city", "note", "kind", "price", "weight"}),
        ("table numbers", {"age", "city", "note", "kind", "red", "big"}),
    ],
)
def test_all_kinds_of_targets_have_the_importance_of_their_columns(
    tmp_path: Path, name: str, columns: set[str]
) -> None:
    importance = explain(train_case(CASES[name], tmp_path).folder)["importance"]
    assert {row["column"] for row in importance["columns"]} <= columns
    assert all(np.isfinite(row["mean"]) and row["spread"] >= 0 for row in importance["columns"])


def draw_squares(count: int, seed: int, noise: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noise with a bright square in any place of every other picture (N, 1, SIDE, SIDE); whether there is one; its place."""
    generator = np.random.default_rng(seed)
    pixels, labels = generator.normal(0, noise, (count, 1, SIDE, SIDE)), np.arange(count) % 2
    places = np.zeros((count, SIDE, SIDE), np.bool_)
    for number, (top, left_edge) in enumerate(generator.integers(0, SIDE - SQUARE, (count, 2))):
        places[number, top : top + SQUARE, left_edge : left_edge + SQUARE] = True
    pixels[:, 0] += 1.5 * labels[:, None, None] * places
    return torch.from_numpy(pixels).float(), torch.from_numpy(labels), torch.from_numpy(places)


def measure_share_on_squares(network: nn.Module, noise: float) -> float:
    """Train a network to tell pictures with a square; the share of its maps that lies on the squares of others."""
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
    pictures, labels, _ = draw_squares(480, 1, noise)
    for part, truth in [*zip(pictures.split(16), labels.split(16), strict=True)] * 4:
        optimizer.zero_grad()
        F.cross_entropy(network(part), truth).backward()
        optimizer.step()
    network.eval()
    pictures, _, places = draw_squares(24, 2, noise)
    shares = []
    for picture, place in zip(pictures[1::2], places[1::2], strict=True):
        heat, outputs = compute_map(network, picture[None])
        assert int(outputs.argmax()) == 1
        resized = F.interpolate(heat[None, None], size=(SIDE, SIDE), mode="bilinear")[0, 0]
        shares.append(float(resized[place].sum() / resized.sum()))
    return float(np.mean(shares))


def test_the_map_lies_on_what_makes_the_class() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2)),
    )
    assert measure_share_on_squares(network, noise=0.1) > 0.6


def test_the_map_of_a_deep_network_leans_to_what_makes_the_class() -> None:
    torch.manual_seed(0)
    network = cnn.build(name="small-cnn", channels=1, classes=2, image_size=SIDE, width=8)
    assert measure_share_on_squares(network, noise=1.0) > 2.5 * SQUARE**2 / SIDE**2


def test_a_run_gets_maps_of_its_mistakes_and_of_right_pictures(tmp_path: Path) -> None:
    run = train_case(CASES["image arrays"], tmp_path).folder
    maps = explain(run)["maps"]
    wrong = [row for row in maps if row["truth"] != row["answer"]]
    assert wrong
    assert wrong == maps[: len(wrong)], "the mistakes come first"
    page = read_page(run)
    assert says(page.text, "explain-heat-maps")
    assert sum(load.startswith("data:image/") for load in page.loads) >= len(maps)
    assert says((run / "report.md").read_text(), "explain-heat-maps")


def test_layercam_is_what_a_hand_computes() -> None:
    """Two convolutions of 1x1, the mean, and a linear layer: the gradient of an activation is its weight by the places."""
    network = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)
    )
    values = {
        "0.weight": [[[[1.0]]], [[[-1.0]]]],
        "0.bias": [0.0, 3.0],
        "2.weight": [[[[1.0]], [[0.0]]], [[[0.0]], [[1.0]]]],
        "2.bias": [0.0, -1.0],
        "5.weight": [[2.0, -4.0], [0.0, 0.0]],
        "5.bias": [10.0, 0.0],
    }
    network.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    picture = torch.tensor([[[[1.0, 2.0], [0.0, 4.0]]]])
    heat, outputs = compute_map(network, picture)
    # Channels of the last convolution: relu(x) and relu(3 - x) - 1, with means 1.75 and 0.5; the second has a negative gradient.
    assert outputs[0].tolist() == [10 + 2 * 1.75 - 4 * 0.5, 0.0]
    assert heat.tolist() == [[0.5, 1.0], [0.0, 2.0]]
    values["5.weight"] = [[2.0, 4.0], [0.0, 0.0]]
    network.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    # Of the second channel, 1, 0, 2 and -1, the gradient is 1: the sum of the channels is cut at 0.
    assert compute_map(network, picture)[0].tolist() == [[1.5, 1.0], [2.0, 1.0]]


@pytest.mark.parametrize("name", ["small-cnn", "resnet18"])
def test_built_in_networks_have_a_map_of_their_last_fine_stage(name: str) -> None:
    network = cnn.build(name=name, channels=3, classes=2, image_size=32, width=4, stem="small", dropout=0.1).eval()
    network.requires_grad_(False)
    heat, _ = compute_map(network, torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert heat.shape == (16, 16)
    assert bool((heat >= 0).all())
    assert all(not layer._forward_hooks for layer in network.modules())


class Patches(nn.Module):
    """As of a vision transformer: its only convolution cuts patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.mixer, self.outputs = (
            nn.Conv2d(1, 6, 4, 4),
            nn.TransformerEncoderLayer(6, 2, 8),
            nn.Linear(6, 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).permute(2, 0, 1)
        return self.outputs(self.mixer(tokens).mean(dim=0))


def refuse(network: nn.Module) -> SpecError:
    with pytest.raises(SpecError) as refused:
        compute_map(network, torch.zeros(1, 1, 8, 8))
    assert refused.value.possible
    assert says_only(refused.value.action, "explain-train-convolutions")
    return refused.value


def test_networks_without_places_are_refused() -> None:
    assert says(refuse(Patches().eval()).given, "explain-attention")
    assert says(refuse(nn.Sequential(nn.Flatten(), nn.Linear(64, 2))).given, "explain-no-convolution")


def test_a_network_without_places_is_refused_before_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_case(CASES["image arrays"], tmp_path).folder
    monkeypatch.setattr(ValidationSamples, "compute_outputs", lambda samples, split: pytest.fail("it is evaluated"))
    monkeypatch.setattr(heat_maps.LastStage, "record", lambda *_: None)
    with pytest.raises(SpecError) as refused:
        explain(run)
    assert says(refused.value.given, "explain-no-convolution")


def test_empty_maps_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compute_empty_map(network: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        heat, outputs = compute_map(network, inputs)
        return torch.zeros_like(heat), outputs

    run = train_case(CASES["image arrays"], tmp_path).folder
    monkeypatch.setattr(heat_maps, "compute_map", compute_empty_map)
    maps = explain(run)["maps"]
    assert all(row["empty"] for row in maps)
    assert says(capsys.readouterr().err, "explain-empty-maps", len(maps))
    assert says(read_page(run).text, "explain-empty-maps-in-report", len(maps))


@pytest.mark.parametrize(
    "content",
    [
        {"importance": 3, "maps": {"a": 1}},
        {"importance": {"columns": [{"column": "a", "mean": "x", "spread": 1}, {}, 7]}, "maps": [7, {}]},
        {"importance": {"columns": [{"column": None, "mean": 1.0, "spread": 1.0}]}},
    ],
)
def test_damaged_values_show_nothing(content: dict[str, Any]) -> None:
    assert list(list_explanation_sections(content)) == []


def test_many_columns_are_cut() -> None:
    columns = [{"column": f"c{i}", "mean": 1 / (i + 1), "spread": 0.1} for i in range(50)]
    (section,) = list_explanation_sections({"importance": {"columns": columns}})
    assert "c39" in str(section)
    assert "c40" not in str(section)
    assert says(str(section), "explain-more-columns", 10)


@pytest.mark.parametrize("name", ["texts", "image labels", "image numbers"])
def test_other_tasks_are_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_case(CASES[name], tmp_path).folder
    assert main.main(["evaluate", str(run), "--explain"]) == 2
    error = capsys.readouterr().err
    assert says(error, "explain-tables-series-pictures")
    assert "do:" in error
    assert not (run / EXPLANATION_FILE).exists()


def test_other_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_case(CASES["table"], tmp_path).folder
    assert main.main(["evaluate", str(run), "--explain", "--data", str(tmp_path / "held.csv")]) == 2
    assert "--explain with --data" in capsys.readouterr().err


def test_a_picture_of_few_pixels_gets_more_under_its_map() -> None:
    from PIL import Image

    drawn = heat_maps.draw_heat(Image.new("RGB", (8, 8)), torch.tensor([[0.0, 1.0]]))
    assert drawn.size == (96, 96)
    left, right = drawn.getpixel((0, 5)), drawn.getpixel((95, 5))
    assert left == (0, 0, 0)
    assert right == (165, 143, 0)
