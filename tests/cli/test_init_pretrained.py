"""`drivetrain init --pretrained`: drafts that start from a pretrained network, frozen but for its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from drivetrain.cli import main
from drivetrain.data.load_data import load
from drivetrain.job import Job
from drivetrain.models.build import build
from drivetrain.models.networks import timm_vision
from tests import reports
from tests.cli.drafted_jobs import draft_job, read_refusal, write_images, write_table
from tests.messages import says
from tests.models.networks import vision_jobs

pytestmark = pytest.mark.usefixtures("working_folder")
LABELLED = [(f"a text about {('pumps', 'valves')[row % 2]} {row}", ("p", "v")[row % 2]) for row in range(40)]


def trained_layers(job: Job) -> set[str]:
    network = build(job, load(job)).module
    return {name.split(".")[0] for name, parameter in network.named_parameters() if parameter.requires_grad}


def test_texts_with_a_folder() -> None:
    folder = reports.save_encoder(Path("networks"))
    write_table("t.csv", ["text", "kind"], LABELLED)
    job = draft_job("t.csv", "--text", "text", "--target", "kind", "--pretrained", folder)
    assert job.model.name == "networks/saved"  # type: ignore[attr-defined]
    assert trained_layers(job) == {"heads"}


def test_a_folder_whose_weights_are_a_pickle(capsys: pytest.CaptureFixture[str]) -> None:
    folder = reports.save_encoder(Path("networks"))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    write_table("t.csv", ["text", "kind"], LABELLED)
    job = draft_job("t.csv", "--text", "text", "--target", "kind", "--pretrained", folder)
    assert "pytorch_model.bin" in capsys.readouterr().out
    assert trained_layers(job) == {"heads"}


def save_resnet(folder: Path) -> Path:
    """A network in the layout that timm writes."""
    network = timm_vision.load_timm().create_model("resnet10t", num_classes=4)
    safetensors.torch.save_file(network.state_dict(), folder / "model.safetensors")
    config = {"architecture": "resnet10t", "num_classes": 4, "pretrained_cfg": network.pretrained_cfg}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("family", "outputs"), [("vit", "classifier"), ("timm", "fc")])
def test_images_with_a_folder(family: str, outputs: str) -> None:
    Path("networks").mkdir()
    saved = save_resnet(Path("networks")) if family == "timm" else vision_jobs.save_network(Path("networks"))
    write_images("photos", {"good": 6, "bad": 6}, size=(40, 20))
    job = draft_job("photos", "--pretrained", saved)
    assert trained_layers(job) == {outputs}
    # What its weights were trained with counts, and flipped images would have other features.
    assert not {"image_size", "fit", "augment"} & job.data.model_dump(exclude_unset=True).keys()


def test_names_on_the_hub() -> None:
    write_images("photos", {"good": 6, "bad": 6})
    drafts = {}
    for number, name in enumerate(("resnet18", "timm/mobilenetv3_small_100.lamb_in1k", "google/vit-base-patch16-224")):
        path = Path(f"{number}.yaml")
        assert main.main(["init", "photos", "--pretrained", name, "--output", str(path)]) == 0
        drafts[name] = next(line for line in path.read_text().splitlines() if line.startswith("model:"))
    frozen = "freeze: {body: true}}"
    assert list(drafts.values()) == [
        f"model: {{name: resnet18, pretrained: true, {frozen}",
        f"model: {{source: timm, name: mobilenetv3_small_100.lamb_in1k, pretrained: true, {frozen}",
        f"model: {{source: transformers, name: google/vit-base-patch16-224, {frozen}",
    ]


def test_what_is_no_pretrained_network(capsys: pytest.CaptureFixture[str]) -> None:
    photos, empty = write_images("photos", {"good": 6, "bad": 6}), Path("empty")
    empty.mkdir()
    assert "no such folder" in read_refusal(capsys, photos, "--pretrained", "./networks/there is none", code=2)
    assert says(read_refusal(capsys, photos, "--pretrained", empty, code=2), "cannot-be-read", "config.json")
    numbers = write_table("numbers.csv", ["a", "b", "kind"], [(row, row % 7, "xy"[row % 2]) for row in range(60)])
    assert "no pretrained networks" in read_refusal(capsys, numbers, "--pretrained", "resnet18", code=2)


@pytest.mark.parametrize(("size", "fit"), [((40, 32), "pad"), ((32, 32), "crop")])
def test_nothing_is_cut_away_where_most_pictures_are_not_square(size: tuple[int, int], fit: str) -> None:
    job = draft_job(write_images("photos", {"good": 6, "bad": 6}, size=size))
    assert job.data.fit == fit  # type: ignore[attr-defined]
