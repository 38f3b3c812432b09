"""The input of pretrained image networks, compared with the image processors of transformers; stored with the model."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drivetrain.data import load_data
from drivetrain.data.load_data import load
from drivetrain.errors import SpecError
from drivetrain.models import saved_model
from drivetrain.pretrained.folder import Pretrained, quiet_transformers
from drivetrain.tasks.image import decode, expected_input
from drivetrain.tasks.image.expected_input import ExpectedInput
from drivetrain.tasks.image.preprocess import ImagePreprocessing
from drivetrain.tasks.image.resize import Resize
from tests import task_cases
from tests.messages import says, says_only
from tests.models.networks import vision_jobs as vision

SIZES = ((180, 120), (90, 200), (128, 128))


def picture(width: int, height: int) -> Image.Image:
    """A smooth picture, of which a shift or another crop changes every value."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    channels = [x, y, (np.sin(5 * x) * np.cos(4 * y) + 1) / 2]
    return Image.fromarray((np.stack(channels, 2) * 255).astype(np.uint8))


def prepare_image(settings: dict[str, Any], path: Path) -> torch.Tensor:
    processor = expected_input.read_processor(settings, 3, None)
    assert processor.size
    assert processor.mean
    assert processor.std
    shape = Resize(processor.fit or "crop", processor.interpolation, processor.crop_share)
    pixels = torch.from_numpy(decode.pixels(str(path), processor.size, 3, shape).copy())[None]
    preparer = ImagePreprocessing(processor.size, 3, (), 0, 255, processor.mean, processor.std, resize=shape)
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
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "resample": 0}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "resample": 1}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "resample": 4}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "resample": 5}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "do_rescale": False}),
        ("vit", "ViTImageProcessorPil", {"size": {"height": 64, "width": 64}, "image_mean": 0.4, "image_std": 0.3}),
        ("efficientnet", "EfficientNetImageProcessorPil", {"size": {"height": 64, "width": 64}, "include_top": False}),
        ("bit", "BitImageProcessorPil", {"size": {"shortest_edge": 80}, "crop_size": 64}),
    ],
)
def test_pixels_are_those_of_the_image_processor(
    tmp_path: Path, module: str, name: str, options: dict[str, Any]
) -> None:
    processors = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
    processor = getattr(processors, name)(**options)
    processor.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    for size in SIZES:
        image = picture(*size)
        image.save(tmp_path / "x.png")
        expected = torch.as_tensor(np.ascontiguousarray(processor(image)["pixel_values"][0]))
        pixels = prepare_image(settings, tmp_path / "x.png")
        assert pixels.shape == expected.shape
        assert (pixels - expected).abs().mean() < 0.05 * expected.std(), (
            size,
            (pixels - expected).abs().mean(),
            expected.std(),
        )


def test_without_a_description_nothing_is_assumed() -> None:
    assert expected_input.read_processor({}, 3, None) == ExpectedInput(None, 3, None, None)
    assert expected_input.read_processor({"size": {"longest_edge": 9}, "do_resize": True}, 3, 32).fit is None
    assert expected_input.read_processor({"size": {"height": 8, "width": 9}}, 3, None).size is None


def write_described_folder(folder: Path) -> None:
    """Class folders, and a network whose processor crops and resizes bicubically."""
    task_cases.image_folders(folder)
    path = vision.save_network(folder) / "preprocessor_config.json"
    crop = {
        "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32},
        "size": {"shortest_edge": 40},
        "resample": 3,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | crop))


def test_the_job_may_ask_for_another_form(tmp_path: Path) -> None:
    write_described_folder(tmp_path)
    dataset = load(vision.job(tmp_path))
    note = "centre square of 80.0% of the short side, bicubic with antialias"
    assert says(dataset.notes, "resized-pretrained-network-expects", note)
    assert load(vision.job(tmp_path, data=", fit: pad")).preprocessing["fit"] == "pad"


def test_predict_takes_all_of_it_from_the_model_folder(tmp_path: Path) -> None:
    spec = f"task: image-classification\ndata: {{train: train, validation: held}}\nmodel: {vision.MODEL}\n"
    run = task_cases.train_case(task_cases.Case(write_described_folder, "", spec), tmp_path)
    expected = task_cases.collect_outputs(run)[""]
    shutil.copytree(run.folder / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "saved")
    model = saved_model.load(tmp_path / "elsewhere")
    form = {
        key: model.preprocessing[key] for key in ("fit", "interpolation", "crop_share", "image_size", "mean", "std")
    }
    assert form == {
        "fit": "crop",
        "interpolation": "bicubic",
        "crop_share": 0.8,
        "image_size": 32,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.2, 0.25, 0.3],
    }
    ids = np.arange(len(expected))
    new_data = load_data.load_new([tmp_path / "held"], model.preprocessing, model.heads, labelled=True)
    torch.testing.assert_close(
        model.network(*new_data.prepare(new_data.split.gather(ids), ids, None)), expected, rtol=1e-5, atol=1e-6
    )
    for key, other in (("interpolation", "bilinear"), ("crop_share", 1.0)):
        changed_data = load_data.load_new(
            [tmp_path / "held"], model.preprocessing | {key: other}, model.heads, labelled=True
        )
        assert not torch.equal(changed_data.split.gather(ids)[0], new_data.split.gather(ids)[0]), key


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "sizes as numbers": ("deit", {"size": 72, "crop_size": 64, "do_center_crop": True}),
    "a crop that only the class does": ("dinov2", {"size": {"shortest_edge": 80}, "crop_size": 64}),
    "the mean of the class": ("vit", {"size": 64}),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_file_that_says_less_than_its_class_does(tmp_path: Path, case: str) -> None:
    """Files on the hub are often of old versions: what they leave out is what the processor's class does."""
    family, options = PUBLISHED[case]
    (tmp_path / expected_input.FILE).write_text(json.dumps(options))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with quiet_transformers() as transformers:
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, local_files_only=True)
    settings = expected_input._read_with_defaults(found_in(tmp_path, family))
    assert not expected_input.list_unknown_settings(settings, expected_input.read_processor(settings, 3, None))
    for size in SIZES:
        image = picture(*size)
        image.save(tmp_path / "x.png")
        expected = torch.as_tensor(np.ascontiguousarray(processor(image)["pixel_values"][0]))
        pixels = prepare_image(settings, tmp_path / "x.png")
        assert pixels.shape == expected.shape
        assert (pixels - expected).abs().mean() < 0.05 * expected.std(), size


def found_in(folder: Path, family: str) -> Pretrained:
    task_cases.image_folders(folder)
    return Pretrained(vision.job(folder), folder, "", SimpleNamespace(model_type=family))


def test_a_folder_that_says_no_size_leaves_it_to_the_job(tmp_path: Path) -> None:
    (tmp_path / expected_input.FILE).write_text(json.dumps({"image_mean": [0.5, 0.4, 0.3], "do_resize": True}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    settings = expected_input._read_with_defaults(found_in(tmp_path, "vit"))
    processor = expected_input.read_processor(settings, 3, None)
    assert (processor.size, processor.fit, processor.mean) == (None, None, (0.5, 0.4, 0.3))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"do_color_quantize": True}, "has do_color_quantize: True"),
    "another value": ({"ensure_multiple_of": 32}, "has ensure_multiple_of: 32"),
    "an unknown filter": ({"resample": 9}, "has resample: 9"),
    "no square": ({"size": {"height": 32, "width": 48}}, "has size: {'height': 32, 'width': 48}"),
    "padding": ({"do_pad": True, "pad_size": {"height": 48, "width": 48}}, "has do_pad: True, pad_size: "),
    "a crop with black edges": (
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 40, "width": 40}, "do_center_crop": True},
        "has crop_size: 40, larger than the 32 pixels of size",
    ),
    "a crop of what is not resized": ({"do_resize": False, "do_center_crop": True}, "do_center_crop without do_resize"),
    "two means": ({"image_mean": [0.5, 0.5]}, "has image_mean: [0.5, 0.5]"),
    "blue, green, red": ({"do_flip_channel_order": True}, "has do_flip_channel_order: True"),
    "a second deviation": ({"image_processor_type": "EfficientNetImageProcessor"}, "include_top: True"),
    **{
        kind: ({"image_processor_type": f"{kind}ImageProcessor"}, f"the processor of {kind}")
        for kind in ("Perceiver", "Levit", "PoolFormer", "MobileViT")
    },
    "an unknown class": ({"image_processor_type": "NoSuchProcessor"}, "describes the images for NoSuchProcessor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_that_is_not_understood_is_refused(tmp_path: Path, case: str) -> None:
    options, message = REFUSED[case]
    task_cases.image_folders(tmp_path)
    path = vision.save_network(tmp_path) / expected_input.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | options))
    with pytest.raises(SpecError) as error:
        load(vision.job(tmp_path))
    assert message in str(error.value)
    assert "  possible: " in str(error.value)


def test_keys_without_effect_are_in_the_log(tmp_path: Path) -> None:
    task_cases.image_folders(tmp_path)
    path = vision.save_network(tmp_path) / expected_input.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_convert_rgb": True, "do_color_quantize": False}))
    notes = load(vision.job(tmp_path)).notes
    assert says_only(notes, "convert-rgb-true-changes", "preprocessor_config.json")
