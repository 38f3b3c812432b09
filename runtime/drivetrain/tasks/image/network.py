"""Networks for images: built in, of timm, or of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from drivetrain.data.dataset import Dataset, Inputs
from drivetrain.data.notes import list_names
from drivetrain.job.model import CustomModel, EarlierRun, ImageNetwork, ImagePretrained, ImageTimm
from drivetrain.models.build import BuiltModel, build_model
from drivetrain.models.dummy_inputs import draw_normal
from drivetrain.models.networks import cnn, hf_vision
from drivetrain.pretrained import folder as pretrained
from drivetrain.pretrained.earlier_run import EarlierModel
from drivetrain.tasks.image import expected_input, timm_network, timm_resnet
from drivetrain.tasks.image.job import ImageJob


def build(job: ImageJob, dataset: Dataset) -> BuiltModel:
    """Build a network for images: built in, of timm, or of transformers."""
    spec, size, channels = job.model, dataset.preprocessing["image_size"], dataset.preprocessing["channels"]
    classes = dataset.heads[""].outputs
    arguments: dict[str, Any]
    assert not isinstance(spec, CustomModel | EarlierRun)
    if isinstance(spec, ImagePretrained):
        source = pretrained.find(job, spec.name)
        network = hf_vision.build_from_folder(job, source, classes, channels, size, spec.dropout)
        arguments = {
            "config": source.config.to_dict(),
            "classes": classes,
            "width": network.classifier.in_features,
            "pooling": network.pooling,
            "dropout": spec.dropout,
        }
        return BuiltModel(network, "vision", arguments, spec.freeze)
    arguments = {"name": spec.name, "channels": channels, "classes": classes, "image_size": size}
    arguments["dropout"] = spec.dropout
    timm_weights = expected_input.find_timm(job)
    if isinstance(spec, ImageTimm):
        built_model = BuiltModel(timm_network.build_from_spec(job, spec, arguments), "timm", arguments, spec.freeze)
        if timm_weights:
            built_model.random_names = timm_network.load_folder_weights(built_model.module, timm_weights)
            built_model.notes.append(_describe_start(timm_weights, built_model))
        return built_model
    assert isinstance(spec, ImageNetwork)
    # Pretrained weights have the large stem, also for small images.
    arguments |= {"width": spec.width, "stem": "large" if timm_weights else spec.stem}
    built_model = build_model("images", arguments, spec)
    if timm_weights:
        built_model.random_names = timm_resnet.load_weights(built_model.module, timm_weights)
        built_model.notes.append(_describe_start(timm_weights, built_model))
    return built_model


def _describe_start(weights: expected_input.TimmFolder, built_model: BuiltModel) -> str:
    return f"starts from {weights.origin or weights.folder}; initialized randomly: {list_names(sorted(built_model.random_names), 6)}"


def adapt_arguments(arguments: dict[str, Any], job: ImageJob, earlier: EarlierModel, dataset: Dataset) -> None:
    """Adapt the arguments of the earlier network to the image size of this job."""
    size, earlier_size = dataset.preprocessing["image_size"], earlier.preprocessing["image_size"]
    if size == earlier_size:
        return
    if arguments["stem"] == "auto":
        # The image size of the earlier run decided its stem.
        arguments["stem"] = "small" if earlier_size <= cnn.MAX_SMALL_IMAGE_SIDE else "large"
    arguments["image_size"] = size


def draw_inputs(generator: np.random.Generator, preprocessing: dict[str, Any], samples: int) -> Inputs:
    """Draw images of normal numbers."""
    side = preprocessing["image_size"]
    return (draw_normal(generator, samples, preprocessing["channels"], side, side),)
