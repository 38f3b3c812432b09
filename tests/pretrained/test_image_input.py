"""The input of pretrained image networks, compared with the image processors of transformers; stored with the model."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from runtime.data import load_new
from runtime.data.images import decode
from runtime.data.images.preprocess import ImagePreprocessing
from runtime.data.images.resize import Resize
from runtime.data.load import load
from runtime.models import saved_model
from runtime.pretrained import image_input
from runtime.pretrained.expected_input import Expected
from tests import trained
from tests.models.networks import test_hf_vision as vision

SIZES = ((180, 120), (90, 200), (128, 128))


def picture(width: int, height: int) -> Image.Image:
    """A smooth picture, of which a shift or another crop changes every value."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    channels = [x, y, (np.sin(5 * x) * np.cos(4 * y) + 1) / 2]
    return Image.fromarray((np.stack(channels, 2) * 255).astype(np.uint8))


def ours(beside: dict[str, Any], path: Path) -> torch.Tensor:
    found = image_input.of_processor(beside, 3, None)
    assert found.size
    assert found.mean
    assert found.std
    shape = Resize(found.fit or "crop", found.interpolation, found.share)
    pixels = torch.from_numpy(decode.pixels(str(path), found.size, 3, shape).copy())[None]
    preparer = ImagePreprocessing(found.size, 3, (), 0, 255, found.mean, found.std, resize=shape)
    return preparer((pixels,), np.arange(1), None)[0][0]


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "resample": 3, "do_rescale": True}),
        (
            "deit",
            "DeiTImageProcessorPil",
            {"size": {"height": 72, "width": 72}, "crop_size": {"height": 64, "width": 64}},
        ),
        ("clip", "CLIPImageProcessorPil", {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}),
        ("clip", "CLIPImageProcessorPil", {"size": {"shortest_edge": 73}, "crop_size": {"height": 64, "width": 64}}),
        ("convnext", "ConvNextImageProcessorPil", {"size": {"shortest_edge": 64}, "crop_pct": 0.875}),
        ("convnext", "ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}, "resample": 3}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "do_normalize": False}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "rescale_factor": 1 / 127.5}),
    ],
)
def test_pixels_are_those_of_the_image_processor(
    tmp_path: Path, module: str, name: str, options: dict[str, Any]
) -> None:
    home = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    processor = getattr(home, name)(**options)
    processor.save_pretrained(tmp_path)
    beside = json.loads((tmp_path / "preprocessor_config.json").read_text())
    for size in SIZES:
        image = picture(*size)
        image.save(tmp_path / "x.png")
        theirs = torch.as_tensor(np.asarray(processor(image)["pixel_values"][0]))
        mine = ours(beside, tmp_path / "x.png")
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().mean() < 0.05 * theirs.std(), (size, (mine - theirs).abs().mean(), theirs.std())


def test_without_a_description_nothing_is_assumed() -> None:
    assert image_input.of_processor({}, 3, None) == Expected(None, 3, None, None)
    assert image_input.of_processor({"size": {"longest_edge": 9}, "do_resize": True}, 3, 32).fit is None
    assert image_input.of_processor({"size": {"height": 8, "width": 9}}, 3, None).size is None


def described(folder: Path) -> None:
    """Class folders, and a network whose processor crops and resizes bicubically."""
    trained.image_folders(folder)
    path = vision.saved(folder) / "preprocessor_config.json"
    crop = {
        "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32},
        "size": {"shortest_edge": 40},
        "resample": 3,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | crop))


def test_the_job_may_ask_for_another_form(tmp_path: Path) -> None:
    described(tmp_path)
    made = load(vision.job(tmp_path))
    note = "centre square of 80.0% of the short side, bicubic with antialias"
    assert any(
        f"resized as the pretrained network expects: upright, transparency over white, {note}" in n for n in made.notes
    )
    assert load(vision.job(tmp_path, data=", fit: pad")).preprocessing["fit"] == "pad"


def test_predict_takes_all_of_it_from_the_model_folder(tmp_path: Path) -> None:
    spec = f"task: image-classification\ndata: {{train: train, validation: held}}\nmodel: {vision.MODEL}\n"
    done = trained.trained(trained.Case(described, "", spec), tmp_path)
    wanted = trained.seen(done)[""]
    shutil.copytree(done.folder / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "saved")
    found = saved_model.load(tmp_path / "elsewhere")
    stored = {
        key: found.preprocessing[key] for key in ("fit", "interpolation", "crop_share", "image_size", "mean", "std")
    }
    assert stored == {
        "fit": "crop",
        "interpolation": "bicubic",
        "crop_share": 0.8,
        "image_size": 32,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.25, 0.3],
    }
    ids = np.arange(len(wanted))
    new = load_new.read([tmp_path / "held"], found.preprocessing, found.heads, labelled=True)
    torch.testing.assert_close(
        found.network(*new.prepare(new.split.gather(ids), ids, None)), wanted, rtol=1e-5, atol=1e-6
    )
    for key, other in (("interpolation", "bilinear"), ("crop_share", 1.0)):
        changed = load_new.read([tmp_path / "held"], found.preprocessing | {key: other}, found.heads, labelled=True)
        assert not torch.equal(changed.split.gather(ids)[0], new.split.gather(ids)[0]), key
