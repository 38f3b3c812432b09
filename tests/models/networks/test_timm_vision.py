"""Networks of timm, without an importable torchvision, are trained, reloaded and started from weights of the hub."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.launch import network
from drivetrain.models.builders import BUILDERS
from drivetrain.models.networks import timm_vision
from drivetrain.training import batch_inputs
from tests import hub_server, task_cases, tiny
from tests.hub_double import COMMIT
from tests.hub_server import Hub
from tests.messages import saying, says
from tests.models.networks.vision_jobs import job
from tests.paths import ROOT

SMALL = ", image_size: 32"
CONFIG: dict[str, Any] = {
    "architecture": "resnet10t",
    "pretrained_cfg": {
        "input_size": [3, 176, 176],
        "interpolation": "bicubic",
        "crop_pct": 0.875,
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.4],
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task_cases.image_folders(tmp_path)
    return tmp_path


@pytest.fixture
def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Write the files of timm on the hub into the folder `weights`."""
    torch.manual_seed(5)
    tensors: dict[str, torch.Tensor] = timm_vision.load_timm().create_model("resnet10t").state_dict()
    (folder / "weights").mkdir()
    safetensors.torch.save_file(tensors, folder / "weights" / "model.safetensors")
    (folder / "weights" / "config.json").write_text(json.dumps(CONFIG))
    return tensors


@pytest.fixture
def hub(folder: Path, weights: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(folder / "home"))
    with hub_server.serve_hub(Hub(hub_server.files_of(folder / "weights"), "timm/resnet10t.c3_in1k")) as server:
        shutil.rmtree(folder / "weights")
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


@pytest.mark.slow
def test_a_network_trains_and_reloads(folder: Path) -> None:
    first = tiny.assemble_plain_run(job(folder, "{source: timm, name: resnet10t}", SMALL), folder)
    safetensors.torch.save_file(first.model.state_dict(), folder / "weights.safetensors")
    training_run = tiny.assemble_plain_run(
        job(folder, "{source: timm, name: resnet10t, weights: weights.safetensors}", SMALL), folder
    )
    assert torch.equal(training_run.model.state_dict()["conv1.0.weight"], first.model.state_dict()["conv1.0.weight"])
    training_run.train_mode()
    training_run.rates.set(training_run.counters, training_run.best_metric.factor())
    for batch in training_run.batches.epoch(0):
        training_run.step(batch_inputs.preprocess(training_run, batch, 0))
    reloaded = BUILDERS["timm"](**json.loads(json.dumps(training_run.built_model.arguments)))
    reloaded.load_state_dict(training_run.model.state_dict())
    pixels = torch.rand(3, 3, 32, 32)
    assert torch.equal(reloaded.eval()(pixels), training_run.model.eval()(pixels))
    with pytest.raises(SpecError, check=saying("timm-network-resnet10x")):
        tiny.assemble_plain_run(job(folder, "{source: timm, name: resnet10x}"), folder)


def test_a_network_starts_with_the_weights_of_the_hub(hub: Hub, weights: dict[str, torch.Tensor], folder: Path) -> None:
    hub_job = job(folder, "{source: timm, name: resnet10t.c3_in1k, pretrained: true}", SMALL)
    needs, cause = network.decide(hub_job)
    assert needs
    assert says(cause, "is-not-local-folder", "model.pretrained", "timm/resnet10t.c3_in1k")
    training_run = tiny.assemble_plain_run(hub_job, folder)
    first_weights = training_run.model.state_dict()
    fresh = {"fc.bias", "fc.weight"}
    assert all(torch.equal(first_weights[name], weights[name]) for name in first_weights.keys() - fresh)
    assert training_run.built_model.notes == [
        f"starts from timm/resnet10t.c3_in1k at {COMMIT[:12]}; initialized randomly: fc.bias, fc.weight"
    ]
    preprocessing = training_run.dataset.preprocessing
    assert {key: preprocessing[key] for key in ("fit", "interpolation", "crop_share", "mean")} == {
        "fit": "crop",
        "interpolation": "bicubic",
        "crop_share": 0.875,
        "mean": [0.4, 0.5, 0.6],
    }
    before = len(hub.requests)
    assert (
        load(job(folder, "{source: timm, name: resnet10t.c3_in1k, pretrained: true}")).preprocessing["image_size"]
        == 176
    )
    assert len(hub.requests) == before, "the second time nothing is asked of the network"


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (
            "{name: resnet18d, pretrained: weights}",
            ("model.pretrained:", "weights is resnet10t", "use weights of resnet18d"),
        ),
        (
            "{name: resnet10t, pretrained: true}",
            ("model.pretrained: is true, and resnet10t has no tag", "list_pretrained"),
        ),
        ("{name: resnet10t, revision: main}", ("model.revision: chooses among pretrained weights", "pretrained: true")),
        (
            "{name: resnet10t, pretrained: weights, weights: weights/model.safetensors}",
            ("model.pretrained: is set, and weights too", "remove one"),
        ),
    ],
)
def test_what_cannot_be_started_from(folder: Path, weights: object, model: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        load(job(folder, model.replace("{", "{source: timm, "), SMALL))
    for part in ("job.yaml:", *parts):
        assert part in str(caught.value)


def test_weights_that_do_not_fit(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    file = folder / "weights" / "model.safetensors"
    safetensors.torch.save_file(weights | {"conv1.0.weight": torch.ones(1)}, file)
    timm_job = job(folder, "{source: timm, name: resnet10t, pretrained: weights}", SMALL)
    with pytest.raises(SpecError, match=r"model.pretrained: .*does not fit: 1 tensors .*: conv1.0.weight"):
        tiny.assemble_plain_run(timm_job, folder)
    file.write_bytes(b"x")
    with pytest.raises(SpecError, match=r"model.pretrained: .*cannot be read(.|\n)*copy it again"):
        tiny.assemble_plain_run(timm_job, folder)


@pytest.mark.slow
def test_nothing_else_finds_the_torchvision_of_timm() -> None:
    """Its import fails with a torch for CPUs; transformers imports it if it exists, torchmetrics if pip lists it."""
    if not (timm_vision.TORCHVISION_FOLDER / "torchvision").is_dir():
        pytest.skip("torchvision is not kept aside here")
    program = (
        "import importlib.metadata, importlib.util, sys, torch\n"
        "assert importlib.util.find_spec('torchvision') is None\n"
        "assert not list(importlib.metadata.distributions(name='torchvision'))\n"
        "from drivetrain.models.networks import timm_vision\n"
        "before, path = torch.library.register_fake, list(sys.path)\n"
        "timm_vision.load_timm().create_model('resnet10t')\n"
        "assert torch.library.register_fake is before and sys.path == path\n"
        "import transformers; transformers.AutoImageProcessor\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_timm_that_is_missing_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(timm_vision, "TORCHVISION_FOLDER", folder / "nowhere")
    with pytest.raises(SpecError) as caught:
        tiny.assemble_plain_run(job(folder, "{source: timm, name: resnet18}"), folder)
    for part in ("timm cannot be imported here", "the images and `make setup` have both", "drivetrain[timm]"):
        assert part in str(caught.value)
