"""Pretrained networks for images are trained, frozen and reloaded; unusable ones are refused with an explanation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.models import saved_model
from drivetrain.models.builders import BUILDERS
from drivetrain.pretrained import convert
from drivetrain.pretrained.folder import quiet_transformers
from drivetrain.training import batch_inputs, run
from tests import task_cases, tiny
from tests.messages import saying, says, says_only
from tests.models.networks.vision_jobs import FAMILIES, MODEL, job, save_network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task_cases.image_folders(tmp_path)
    return tmp_path


def backbone(training_run: run.Run) -> dict[str, torch.Tensor]:
    return dict(training_run.model.backbone.state_dict())


@pytest.mark.parametrize("family", FAMILIES)
def test_families_begin_with_their_weights_and_train(folder: Path, family: str) -> None:
    with quiet_transformers() as transformers:
        before = transformers.AutoModel.from_pretrained(save_network(folder, family)).state_dict()
    training_run = tiny.assemble_plain_run(job(folder), folder)
    first_weights = {name: value.clone() for name, value in backbone(training_run).items()}
    assert first_weights.keys() <= before.keys()
    assert all(torch.equal(first_weights[name], before[name]) for name in first_weights)
    assert all(name.startswith("pooler.") for name in before.keys() - first_weights.keys())
    training_run.train_mode()
    training_run.rates.set(training_run.counters, training_run.best_metric.factor())
    for batch in training_run.batches.epoch(0):
        training_run.step(batch_inputs.preprocess(training_run, batch, 0))
    after = backbone(training_run)
    unchanged = {
        name
        for name in first_weights
        if torch.equal(after[name], before[name]) and first_weights[name].is_floating_point()
    }
    assert unchanged <= {"embeddings.mask_token"}
    reloaded = BUILDERS["vision"](**json.loads(json.dumps(training_run.built_model.arguments)))
    reloaded.load_state_dict(training_run.model.state_dict())
    pixels = torch.rand(3, 3, 32, 32)
    assert torch.equal(reloaded.eval()(pixels), training_run.model.eval()(pixels))


def test_images_look_as_the_network_was_trained(folder: Path) -> None:
    save_network(folder)
    dataset = load(job(folder))
    assert dataset.preprocessing["image_size"] == 32
    assert dataset.preprocessing["mean"] == [0.5, 0.4, 0.3]
    assert dataset.preprocessing["std"] == [0.2, 0.25, 0.3]
    assert says_only(dataset.notes, "image-size-input-size", 32)
    assert says(dataset.notes, "are-those-of-its", "preprocessor_config.json")
    (folder / "saved" / "preprocessor_config.json").unlink()
    assert says(load(job(folder)).notes, "for-lack-of", "preprocessor_config.json")


def test_frozen_layers_stay(folder: Path) -> None:
    save_network(folder)
    frozen_job = job(folder, "{source: transformers, name: saved, freeze: {embeddings: true, layers: 1}}")
    training_run = tiny.assemble_plain_run(frozen_job, folder)
    frozen = {name for name, p in training_run.model.named_parameters() if not p.requires_grad}
    assert {name.split(".")[1] for name in frozen} >= {"embeddings"}
    assert any(".0." in name for name in frozen)
    assert not any(".1." in name for name in frozen if "layer" in name)


def test_the_model_folder_alone_is_enough(tmp_path: Path) -> None:
    def files(folder: Path) -> None:
        task_cases.image_folders(folder)
        save_network(folder)

    spec_text = f"task: image-classification\ndata: {{train: train, validation: held}}\nmodel: {MODEL}\n"
    done = task_cases.train_case(task_cases.Case(files, "", spec_text), tmp_path)
    expected = task_cases.collect_outputs(done)[""]
    shutil.copytree(done.folder / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "saved")
    loaded = saved_model.load(tmp_path / "elsewhere")
    new = load_data.load_new([tmp_path / "held"], loaded.preprocessing, loaded.heads, labelled=True)
    ids = torch.arange(len(new.split)).numpy()
    inputs = new.prepare(new.split.gather(ids), ids, None)
    torch.testing.assert_close(loaded.network(*inputs), expected, rtol=1e-5, atol=1e-6)


def test_the_pickle_twin_is_refused_and_converts(folder: Path) -> None:
    model_folder = save_network(folder)
    torch.save(safetensors.torch.load_file(model_folder / "model.safetensors"), model_folder / "pytorch_model.bin")
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(SpecError, check=saying("has-its-weights-only-as-pickle-2")):
        load(job(folder))
    convert.convert_local(model_folder)
    assert backbone(tiny.assemble_plain_run(job(folder), folder))


@pytest.mark.parametrize(
    ("family", "data", "parts"),
    [
        (
            "vit",
            ", image_size: 48",
            ("does not accept images with 3 channels and 48 pixels a side", "set data.image_size: 32"),
        ),
        ("vit", ", channels: 1", ("data.channels: is 1, and", "takes 3", "write 3, or remove the key")),
    ],
)
def test_images_that_the_network_does_not_take(folder: Path, family: str, data: str, parts: tuple[str, ...]) -> None:
    save_network(folder, family)
    with pytest.raises(SpecError) as caught:
        tiny.assemble_plain_run(job(folder, data=data), folder)
    for part in ("job.yaml:", *parts):
        assert part in str(caught.value)


def test_a_text_encoder_takes_no_image(folder: Path) -> None:
    with quiet_transformers() as transformers:
        config = transformers.AutoConfig.for_model(
            "bert", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50
        )
        transformers.AutoModel.from_config(config).save_pretrained(folder / "saved")
    with pytest.raises(SpecError, check=saying("bert-accept-images")):
        tiny.assemble_plain_run(job(folder), folder)
