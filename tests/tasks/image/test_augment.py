"""Augmentation: the right change, and the same change for the same (seed, epoch, sample)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from drivetrain.data import dataset
from drivetrain.job.data import Erasing, ImageAugment
from drivetrain.tasks.image import augment as augmentation
from drivetrain.tasks.image.augment import Augment, crop_padded, erase
from drivetrain.tasks.image.preprocess import ImagePreprocessing

torch.set_num_threads(1)
EVERY: dict[str, dict[str, Any]] = {
    "flip": {"flip": True},
    "crop_padding": {"crop_padding": 3},
    "resized_crop": {"resized_crop": {}},
    "randaugment": {"randaugment": {"num_ops": 3, "magnitude": 15}},
    "color_jitter": {"color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}},
    "erasing": {"erasing": {"probability": 0.7}},
}
ALL = {key: value for spec in EVERY.values() for key, value in spec.items()}


def augment(spec: dict[str, Any], channels: int = 3, seed: int = 5) -> Augment:
    return Augment(ImageAugment.model_validate(spec), seed, (0.4, 0.5, 0.6)[:channels])


def pictures(count: int = 16, channels: int = 3, side: int = 16) -> torch.Tensor:
    """Smooth random images with pixels at levels of 8 bits."""
    coarse = torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(1))
    smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)
    return (smooth * 255).round() / 255


def to_pillow(image: torch.Tensor) -> Image.Image:
    levels = (image * 255).round().byte().permute(1, 2, 0).numpy()
    return Image.fromarray(levels.squeeze())


def to_tensor(image: Image.Image) -> torch.Tensor:
    levels = np.asarray(image)
    return torch.from_numpy(levels.reshape(*levels.shape[:2], -1).copy()).permute(2, 0, 1) / 255


# ---------------------------------------------------------------------------------- a function of seed, epoch, sample


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spec", [*EVERY.values(), ALL], ids=[*EVERY, "all"])
def test_augmentation_of_a_sample_does_not_depend_on_its_batch(spec: dict[str, Any], channels: int) -> None:
    images, ids = pictures(32, channels), np.arange(100, 132)
    change = augment(spec, channels)
    together = change(images, ids, 3)
    order = np.random.default_rng(0).permutation(32)
    assert torch.equal(change(images[order], ids[order], 3), together[order])
    assert torch.equal(change(images[7:8], ids[7:8], 3), together[7:8])
    assert torch.equal(torch.cat([change(images[i : i + 5], ids[i : i + 5], 3) for i in range(0, 32, 5)]), together)


@pytest.mark.parametrize("spec", [*EVERY.values(), ALL], ids=[*EVERY, "all"])
def test_augmentation_differs_by_epoch_seed_and_sample(spec: dict[str, Any]) -> None:
    images, ids = pictures(32), np.arange(32)
    change = augment(spec)
    first = change(images, ids, 0)
    assert not torch.equal(change(images, ids, 1), first)
    assert not torch.equal(change(images, ids + 32, 0), first)
    assert not torch.equal(augment(spec, seed=6)(images, ids, 0), first)
    assert torch.equal(augment(spec)(images, ids, 0), first)


@pytest.mark.parametrize("spec", [*EVERY.values(), ALL], ids=[*EVERY, "all"])
def test_results_are_images_and_the_input_stays(spec: dict[str, Any]) -> None:
    images = pictures(64)
    before = images.clone()
    result = augment(spec)(images, np.arange(64), 0)
    assert result.shape == images.shape
    assert result.dtype == torch.float32
    assert torch.equal(images, before)
    assert float(result.min()) >= -1e-6
    assert float(result.max()) <= 1 + 1e-6


def test_all_work_stays_on_the_device_of_the_images() -> None:
    """The meta device computes nothing, but refuses to mix with tensors of another device."""
    raw = torch.zeros(16, 3, 16, 16, dtype=torch.uint8, device="meta")
    preparer = ImagePreprocessing(16, 3, ("a", "b"), 0, 255, (0.4, 0.5, 0.6), (0.2, 0.2, 0.2), augment(ALL))
    (ready,) = preparer((raw,), np.arange(16), 0)
    assert ready.device.type == "meta"


def test_nothing_is_changed_unless_asked_or_outside_of_training() -> None:
    images, ids = pictures(), np.arange(16)
    assert augment({})(images, ids, 0) is images
    preparer = ImagePreprocessing(16, 3, ("a", "b"), 0, 255, (0.4, 0.5, 0.6), (0.2, 0.2, 0.2), augment(ALL))
    raw = (images * 255).round().byte()
    assert torch.equal(preparer((raw,), ids, None)[0], preparer((raw,), ids[::-1], None)[0])
    plain = (raw.double() / 255 - torch.tensor([0.4, 0.5, 0.6]).double().view(3, 1, 1)) / 0.2
    assert torch.allclose(preparer((raw,), ids, None)[0].double(), plain, atol=1e-5)
    assert not torch.equal(preparer((raw,), ids, 0)[0], preparer((raw,), ids, None)[0])


def test_augmentations_use_independent_random_numbers() -> None:
    """An image that is flipped is not thereby cropped to a side: the draws of two changes do not go together."""
    ids = np.arange(4000)
    ramp = torch.arange(8.0).expand(4000, 1, 8, 8) / 8
    result = augment({"flip": True, "crop_padding": 2}, channels=1)(ramp, ids, 0)
    flipped = (result[:, 0, 4, 3] > result[:, 0, 4, 4]).float()
    edge = (result[:, 0, 0, :] - 0.4).abs().amax(dim=1) < 1e-6
    assert abs(float(flipped[edge].mean()) - 0.5) < 0.05
    assert abs(float(flipped[~edge].mean()) - 0.5) < 0.05


# ------------------------------------------------------------------------------------------------------ single changes


def test_half_of_the_images_are_flipped() -> None:
    images = pictures(1, side=8).expand(2000, -1, -1, -1)
    result = augment({"flip": True})(images, np.arange(2000), 0)
    flipped = [torch.equal(image, images[0].flip(2)) for image in result]
    assert all(torch.equal(image, images[0]) for image, turned in zip(result, flipped, strict=True) if not turned)
    assert 900 < sum(flipped) < 1100


def test_padded_crop_shows_every_place_and_fills_with_the_mean() -> None:
    image = pictures(1, side=8)
    fill = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    places = np.array([(y, x) for y in range(5) for x in range(5)])
    result = crop_padded(image.expand(25, -1, -1, -1), (places + 0.5) / 5, 2, fill)
    padded = fill.expand(3, 12, 12).clone()
    padded[:, 2:10, 2:10] = image[0]
    for crop, (y, x) in zip(result, places, strict=True):
        assert torch.equal(crop, padded[:, y : y + 8, x : x + 8])
    crops = augment({"crop_padding": 2})(image.expand(600, -1, -1, -1), np.arange(600), 0)
    assert len({tuple(crop.flatten().tolist()) for crop in crops}) == 25


def test_the_mean_is_nothing_after_normalisation() -> None:
    raw = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8)
    change = augment({"erasing": {"probability": 1.0, "area": [0.3, 0.4]}})
    preparer = ImagePreprocessing(8, 3, ("a", "b"), 0, 255, (0.4, 0.5, 0.6), (0.2, 0.2, 0.2), change)
    (ready,) = preparer((raw,), np.arange(8), 0)
    assert ((ready == 0).all(dim=1).flatten(1).sum(dim=1) > 12).all()


def test_resized_crop_against_a_sampling_by_hand() -> None:
    images = pictures(6, side=12).double()
    draws = np.random.default_rng(0).random((6, 4))
    result = augmentation.crop(images, draws, (0.3, 0.8), (0.5, 2.0))
    for image, crop, (a, b, c, d) in zip(images, result, draws, strict=True):
        area, ratio = 0.3 + 0.5 * a, math.exp(math.log(0.5) + math.log(4) * b)
        width, height = min(1.0, math.sqrt(area * ratio)) * 12, min(1.0, math.sqrt(area / ratio)) * 12
        left_edge, top_edge = (12 - width) * c, (12 - height) * d
        for y, x in ((0, 0), (3, 7), (11, 11), (5, 0)):
            at_y, at_x = top_edge + (y + 0.5) * height / 12 - 0.5, left_edge + (x + 0.5) * width / 12 - 0.5
            at_y, at_x = min(max(at_y, 0), 11), min(max(at_x, 0), 11)
            low_y, low_x = min(int(at_y), 10), min(int(at_x), 10)
            dy, dx = at_y - low_y, at_x - low_x
            (tl, tr), (bl, br) = image[:, low_y : low_y + 2, low_x : low_x + 2].permute(1, 2, 0)
            expected = (1 - dy) * ((1 - dx) * tl + dx * tr) + dy * ((1 - dx) * bl + dx * br)
            assert torch.allclose(crop[:, y, x], expected, atol=1e-9)


def test_the_whole_image_as_a_crop_is_the_image() -> None:
    images = pictures()
    draws = np.random.default_rng(0).random((16, 4))
    assert torch.allclose(augmentation.crop(images, draws, (1.0, 1.0), (1.0, 1.0)), images, atol=1e-5)


def test_erasing_paints_one_rectangle_of_the_right_size() -> None:
    images, fill = torch.zeros(500, 1, 32, 32), torch.ones(1, 1, 1)
    spec = Erasing(probability=0.5, area=(0.1, 0.2))
    painted = erase(images, np.random.default_rng(0).random((500, 5)), spec, fill)[:, 0] == 1
    some = painted.flatten(1).any(dim=1)
    assert 200 < int(some.sum()) < 300
    for patch in painted[some]:
        rows, columns = patch.any(dim=1), patch.any(dim=0)
        assert int(patch.sum()) == int(rows.sum()) * int(columns.sum())
        assert int(rows.nonzero().max() - rows.nonzero().min()) + 1 == int(rows.sum())
        assert 0.07 < int(patch.sum()) / 1024 < 0.24
        assert 0.2 < int(columns.sum()) / int(rows.sum()) < 4.5
    assert painted[some][:, 0].any()
    assert painted[some][:, -1].any()


def test_jitter_stays_within_its_factors() -> None:
    images = torch.full((1000, 3, 4, 4), 0.5)
    result = augment({"color_jitter": {"brightness": 0.2}})(images, np.arange(1000), 0)[:, 0, 0, 0] / 0.5
    assert 0.8 <= float(result.min()) < 0.81
    assert 1.19 < float(result.max()) <= 1.2


# ------------------------------------------------------------------------------------- against Pillow's own operations

FACTORS = [0.1, 0.55, 1.0, 1.45, 1.9]
ENHANCERS: dict[str, tuple[Callable[..., torch.Tensor], Any]] = {
    "brightness": (augmentation.brightness, ImageEnhance.Brightness),
    "contrast": (augmentation.contrast, ImageEnhance.Contrast),
    "color": (augmentation.saturation, ImageEnhance.Color),
    "sharpness": (augmentation.sharpness, ImageEnhance.Sharpness),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ENHANCERS)
def test_enhancing_is_what_pillow_does(name: str, channels: int) -> None:
    change, enhancer = ENHANCERS[name]
    images = pictures(5, channels)
    result = change(images, torch.tensor(FACTORS).view(-1, 1, 1, 1))
    for image, factor, output in zip(images, FACTORS, result, strict=True):
        expected = to_tensor(enhancer(to_pillow(image)).enhance(factor))
        assert float((output - expected).abs().max()) <= 2.5 / 255


def test_contrast_turns_around_the_mean() -> None:
    halves = torch.zeros(1, 3, 8, 8)
    halves[..., 4:] = 1
    result = augmentation.contrast(halves, torch.tensor(0.1).view(1, 1, 1, 1))
    assert result.unique().tolist() == pytest.approx([0.45, 0.55], abs=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("bits", [4, 5, 7, 8])
def test_posterize_is_what_pillow_does(bits: int, channels: int) -> None:
    images = pictures(4, channels)
    for image, output in zip(images, augmentation.posterize(images, bits), strict=True):
        assert torch.equal(output, to_tensor(ImageOps.posterize(to_pillow(image), bits)))


@pytest.mark.parametrize("threshold", [0, 100, 255])
def test_solarize_is_what_pillow_does(threshold: int) -> None:
    images = pictures(4)
    for image, output in zip(images, augmentation.solarize(images, threshold / 255), strict=True):
        expected = to_tensor(ImageOps.solarize(to_pillow(image), threshold))
        assert torch.allclose(output, expected, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_equalize_is_what_pillow_does(channels: int) -> None:
    images = pictures(6, channels, side=48)
    images[1] = images[1] * 0.3
    images[2, :, :40] = 0.2
    images[3] = 0.7
    images[4] = (images[4] > 0.5).float()
    images = (images * 255).round() / 255
    for image, output in zip(images, augmentation.equalize(images), strict=True):
        assert torch.allclose(output, to_tensor(ImageOps.equalize(to_pillow(image))), atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_autocontrast_is_what_pillow_does(channels: int) -> None:
    images = pictures(4, channels)
    images[1] = images[1] * 0.3 + 0.2
    images[2] = 0.25
    images = (images * 255).round() / 255
    for image, output in zip(images, augmentation.autocontrast(images), strict=True):
        assert float((output - to_tensor(ImageOps.autocontrast(to_pillow(image)))).abs().max()) <= 1.01 / 255


WARPS: dict[str, Callable[[float, float], tuple[float, ...]]] = {
    # Pillow's coefficients from result to source in pixels, turned around the centre c of the image.
    "shear_x": lambda s, c: (1, 0.3 * s, -0.3 * s * c, 0, 1, 0),
    "shear_y": lambda s, c: (1, 0, 0, 0.3 * s, 1, -0.3 * s * c),
    "translate_x": lambda s, c: (1, 0, 150 / 331 * 2 * c * s, 0, 1, 0),
    "translate_y": lambda s, c: (1, 0, 0, 0, 1, 150 / 331 * 2 * c * s),
}


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", [*WARPS, "rotate"])
def test_moves_are_what_pillow_does(name: str, sign: float) -> None:
    (image,) = pictures(1, side=32)
    fill = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    output = augmentation.apply(image[None], np.array([name]), np.array([sign]), 0.5, fill)[0]
    if name == "rotate":
        expected = to_tensor(to_pillow(image).rotate(15 * sign, Image.Resampling.BILINEAR))
    else:
        data = WARPS[name](0.5 * sign, 16.0)
        expected = to_tensor(
            to_pillow(image).transform((32, 32), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
        )
    # Pillow treats the last pixel before the edge otherwise, so the middle is compared, where both show the image.
    inside = (slice(None), slice(9, 23), slice(9, 23))
    assert float((output[inside] - expected[inside]).abs().max()) <= 1.5 / 255
    assert float((image[inside] - expected[inside]).abs().max()) > 0.05
    if name == "translate_x":
        edge = output[:, :, 0] if sign < 0 else output[:, :, -1]
        assert torch.allclose(edge, fill[:, :, 0].expand(3, 32), atol=1e-6)


# --------------------------------------------------------------------------------------------------------- RandAugment


@pytest.mark.parametrize(("channels", "count"), [(1, 13), (3, 14)])
def test_operations_and_directions_are_equally_likely(
    channels: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations: list[tuple[str, float]] = []

    def spy(pixels: torch.Tensor, names: Any, signs: Any, share: float, fill: torch.Tensor) -> torch.Tensor:
        operations.extend(zip(names.tolist(), signs.tolist(), strict=True))
        return pixels

    monkeypatch.setattr(augmentation, "apply", spy)
    augment({"randaugment": {"num_ops": 2}}, channels)(torch.zeros(7000, channels, 4, 4), np.arange(7000), 0)
    assert len(operations) == 14000
    names = [name for name, _ in operations]
    assert len(set(names)) == count
    for name in set(names):
        assert abs(names.count(name) - 14000 / count) < 5 * math.sqrt(14000 / count)
    assert abs(sum(sign for _, sign in operations)) < 5 * math.sqrt(14000)
    first, second = names[:7000], names[7000:]
    assert abs(sum(a == b for a, b in zip(first, second, strict=True)) - 7000 / count) < 5 * math.sqrt(7000 / count)


@pytest.mark.parametrize("name", augmentation.OPERATIONS)
def test_each_operation_changes_only_its_images(name: str) -> None:
    images, fill = pictures(4), torch.zeros(3, 1, 1)
    names = np.array(["identity", name, "identity", name])
    result = augmentation.apply(images, names, np.ones(4), 0.5, fill)
    assert torch.equal(result[::2], images[::2])
    assert torch.equal(result[1::2], images[1::2]) == (name == "identity")


def test_operations_of_no_strength_change_almost_nothing() -> None:
    images = pictures(10)
    names = np.array([*augmentation.MOVES, *augmentation.FACTORS, "posterize"])
    result = augmentation.apply(images, names, np.ones(10), 0.0, torch.zeros(3, 1, 1))
    assert torch.allclose(result, images, atol=1e-5)


def test_erasing_copies_four_numbers_an_image_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    onto = dataset.onto
    monkeypatch.setattr(augmentation, "onto", lambda device, values: copied.append(values.size) or onto(device, values))
    erase(
        torch.zeros(8, 3, 64, 64),
        np.random.default_rng(0).random((8, 5)),
        Erasing(probability=0.5),
        torch.ones(3, 1, 1),
    )
    assert copied == [4 * 8]
