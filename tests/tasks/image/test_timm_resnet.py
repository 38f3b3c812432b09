"""Built-in ResNets with weights of timm: the same features as a network of timm's names, and errors in three parts.

timm_resnets.json has the tensors of timm 1.0.31 with their shapes; of its three networks, ours gave the same bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.launch import network
from drivetrain.models import saved_model
from drivetrain.models.networks import cnn
from drivetrain.tasks.image import timm_resnet
from drivetrain.training import recorded_inputs
from tests import hub_server, task_cases, tiny
from tests.hub_double import COMMIT
from tests.hub_server import Hub
from tests.messages import get_message, says, says_each
from tests.paths import TESTS

SHAPES: dict[str, dict[str, list[int]]] = json.loads((TESTS / "pretrained" / "timm_resnets.json").read_text())
CONFIG = {
    "architecture": "resnet18",
    "num_classes": 1000,
    "num_features": 512,
    "pretrained_cfg": {
        "tag": "a1_in1k",
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.95,
        "crop_mode": "center",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "first_conv": "conv1",
        "classifier": "fc",
    },
}
SMALL = ", image_size: 32"
MODEL = "{name: resnet18, pretrained: true}"


def make_weights(name: str) -> dict[str, Tensor]:
    """Random tensors with the names and shapes of timm."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for key, shape in SHAPES[name].items():
        if key.endswith("num_batches_tracked"):
            tensors[key] = torch.tensor(7)
        elif "running_var" in key or (len(shape) == 1 and key.endswith("weight")):
            tensors[key] = torch.rand(shape, generator=generator) + 0.5
        else:
            tensors[key] = torch.randn(shape, generator=generator) * (
                0.1 if len(shape) < 2 else (2 / np.prod(shape[1:])) ** 0.5
            )
    return tensors


def norm(x: Tensor, tensors: dict[str, Tensor], name: str) -> Tensor:
    values = [tensors[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    return functional.batch_norm(x, *values)  # type: ignore[arg-type]


def compute_features(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """What a ResNet computes (He et al. 2016), layer by layer, by timm's names."""
    x = functional.conv2d(x, tensors["conv1.weight"], stride=2, padding=3)
    x = functional.max_pool2d(norm(x, tensors, "bn1").relu(), 3, 2, 1)
    for name in sorted({key.rpartition(".conv")[0] for key in tensors if key.startswith("layer") and ".conv" in key}):
        last = 3 if f"{name}.conv3.weight" in tensors else 2
        stride = 2 if name.endswith(".0") and not name.startswith("layer1") else 1
        y = x
        for number in range(1, last + 1):
            kernel = tensors[f"{name}.conv{number}.weight"]
            kernel_stride = stride if number == last - 1 else 1
            y = norm(
                functional.conv2d(y, kernel, stride=kernel_stride, padding=kernel.shape[2] // 2),
                tensors,
                f"{name}.bn{number}",
            )
            y = y.relu() if number < last else y
        if f"{name}.downsample.0.weight" in tensors:
            x = norm(
                functional.conv2d(x, tensors[f"{name}.downsample.0.weight"], stride=stride),
                tensors,
                f"{name}.downsample.1",
            )
        x = (x + y).relu()
    return x.mean(dim=(2, 3))


@pytest.mark.parametrize("name", SHAPES)
def test_the_features_are_those_of_timm(name: str) -> None:
    timm_tensors = make_weights(name)
    ours = cnn.build(name, channels=3, classes=5, image_size=224, stem="large").eval()
    renamed = timm_resnet.rename_tensors(timm_tensors)
    initial_state = ours.state_dict()
    assert initial_state.keys() - renamed.keys() == {"classifier.weight", "classifier.bias"}
    assert len(renamed) == len(timm_tensors) - 2, "all but their classifier"
    ours.load_state_dict(initial_state | renamed)
    pixels = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = compute_features(pixels, timm_tensors)
        torch.testing.assert_close(ours.stages(ours.stem(pixels)).mean(dim=(2, 3)), expected, rtol=1e-5, atol=1e-5)
    assert float(expected.std()) > 0.01


def make_job(folder: Path, model: str = MODEL, data: str = SMALL) -> Job:
    (folder / "job.yaml").write_text(
        f"name: t\ntask: image-classification\ndata: {{train: train, validation: held{data}}}\nmodel: {model}\n"
        "train: {epochs: 1, batch_size: 4}\n"
    )
    return job_spec.load(folder / "job.yaml", [])


def save_weights(folder: Path, config: dict[str, Any] | None = None) -> Path:
    weights_folder = folder / "weights"
    weights_folder.mkdir()
    safetensors.torch.save_file(make_weights("resnet18"), weights_folder / "model.safetensors")
    (weights_folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    return weights_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task_cases.image_folders(tmp_path)
    return tmp_path


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server.serve_hub(Hub(hub_server.files_of(save_weights(folder)), "timm/resnet18.a1_in1k")) as resnet_hub:
        shutil.rmtree(folder / "weights")
        monkeypatch.setenv("HF_ENDPOINT", resnet_hub.endpoint)
        yield resnet_hub


def test_a_resnet_starts_with_the_weights_of_the_hub(hub: Hub, folder: Path) -> None:
    job = make_job(folder)
    assert says_each(
        network.decide(job),
        (True, get_message("network-local-folder-looked", "model.pretrained", "timm/resnet18.a1_in1k")),
    )
    run = tiny.assemble_plain_run(job, folder)
    renamed, weights = timm_resnet.rename_tensors(make_weights("resnet18")), run.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in renamed.items())
    assert run.built_model.notes == [
        f"starts from timm/resnet18.a1_in1k at {COMMIT[:12]}; initialized randomly: classifier.bias, classifier.weight"
    ]
    preprocessing = run.dataset.preprocessing
    assert {key: preprocessing[key] for key in ("fit", "interpolation", "crop_share", "mean", "channels")} == {
        "fit": "crop",
        "interpolation": "bicubic",
        "crop_share": 0.95,
        "mean": [0.485, 0.456, 0.406],
        "channels": 3,
    }
    assert says(run.dataset.notes, "are-those-of-its", "config.json")
    assert load(make_job(folder, data="")).preprocessing["image_size"] == 224
    frozen_run = tiny.assemble_plain_run(
        make_job(folder, "{name: resnet18, pretrained: true, freeze: {names: ['stem*']}}"), folder
    )
    assert not any("never learn" in note for note in frozen_run.built_model.notes)


def test_a_local_folder_and_its_model_folder_alone(tmp_path: Path) -> None:
    def files(folder: Path) -> None:
        task_cases.image_folders(folder)
        save_weights(folder)

    spec = (
        f"task: image-classification\ndata: {{train: train, validation: held{SMALL}}}\n"
        "model: {name: resnet18, pretrained: weights}\n"
    )
    run = task_cases.train_case(task_cases.Case(files, "", spec), tmp_path)
    expected = task_cases.collect_outputs(run)[""]
    input_files = {
        key: names for key, _, names in recorded_inputs._list_files(recorded_inputs._find_paths(run.job), run.readable)
    }
    assert input_files["model.pretrained"] == ["config.json", "model.safetensors"], (
        "a resumed run notices other weights"
    )
    shutil.copytree(run.folder / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "weights")
    model = saved_model.load(tmp_path / "elsewhere")
    new_data = load_data.load_new([tmp_path / "held"], model.preprocessing, model.heads, labelled=True)
    ids = np.arange(len(expected))
    torch.testing.assert_close(
        model.network(*new_data.prepare(new_data.split.gather(ids), ids, None)), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("task", "target", "outputs"),
    [("classification", "tags, multi_label: true", 3), ("regression", "[age, depth]", 2)],
)
def test_several_labels_and_numbers(task: str, target: str, outputs: int, tmp_path: Path) -> None:
    """The head has the outputs of the task; the model folder predicts what the run did, and another run starts from it."""

    def files(folder: Path) -> None:
        task_cases.image_manifest(folder)
        save_weights(folder)

    data = f"task: image-{task}\ndata: {{train: train.csv, validation: held.csv, label_column: {target}{SMALL}}}\n"
    run = task_cases.train_case(
        task_cases.Case(files, ".csv", f"{data}model: {{name: resnet18, pretrained: weights}}\n"), tmp_path
    )
    expected = task_cases.collect_outputs(run)[""]
    assert expected.shape == (9, outputs)
    model = saved_model.load(run.folder / "model")
    new_data = load_data.load_new([tmp_path / "held.csv"], model.preprocessing, model.heads, labelled=True)
    ids = np.arange(9)
    inputs = new_data.prepare(new_data.split.gather(ids), ids, None)
    torch.testing.assert_close(model.network(*inputs), expected, rtol=1e-4, atol=1e-4)

    text = f"name: tuned\n{data}model: {{from: {run.folder / 'model'}}}\ntrain: {{epochs: 1, batch_size: 4}}\n"
    (tmp_path / "tuned.yaml").write_text(text)
    tuned_run = tiny.assemble_plain_run(job_spec.load(tmp_path / "tuned.yaml"), tmp_path)
    tuned_weights, weights = tuned_run.model.state_dict(), model.network.state_dict()
    assert all(torch.equal(tuned_weights[name], weights[name]) for name in tuned_weights)


@pytest.mark.parametrize(
    ("config", "data", "messages"),
    [
        (
            CONFIG | {"architecture": "resnet34"},
            SMALL,
            (
                "weights is resnet34",
                "a folder with config.json and model.safetensors of timm",
                "use weights of resnet18",
            ),
        ),
        ({}, SMALL, ("is not a network of timm", "a folder with", "use weights of resnet18")),
        (
            {"architecture": "resnet18"},
            SMALL,
            ("does not describe the training images", "input_size, mean, std", "use another folder"),
        ),
        (CONFIG, f"{SMALL}, channels: 1", ("data.channels: is 1, and", "possible: 3", "write 3, or remove the key")),
    ],
)
def test_weights_that_do_not_fit(folder: Path, config: dict[str, Any], data: str, messages: tuple[str, ...]) -> None:
    save_weights(folder, config)
    with pytest.raises(SpecError) as caught:
        load(make_job(folder, "{name: resnet18, pretrained: weights}", data))
    for part in ("job.yaml:", *messages):
        assert part in str(caught.value)


def test_tensors_that_do_not_fit(folder: Path) -> None:
    weights_folder, tensors = save_weights(folder), make_weights("resnet18")
    del tensors["layer1.0.conv1.weight"]
    safetensors.torch.save_file(tensors | {"layer1.5.bn1.bias": torch.ones(1)}, weights_folder / "model.safetensors")
    with pytest.raises(
        SpecError,
        match=r"model.pretrained: .* does not fit: 2 tensors are missing, unknown or of another shape: stages.0.0.main.0.weight, stages.0.5",
    ):
        tiny.assemble_plain_run(make_job(folder, "{name: resnet18, pretrained: weights}"), folder)
    (weights_folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(SpecError, match=r"model.pretrained: .*cannot be read(.|\n)*copy it again"):
        tiny.assemble_plain_run(make_job(folder, "{name: resnet18, pretrained: weights}"), folder)


def test_a_folder_that_is_nowhere(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"job.yaml:4:\d+: model.pretrained: .*nowhere does not exist"):
        load(make_job(folder, "{name: resnet18, pretrained: ./nowhere}"))
