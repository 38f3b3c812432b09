"""Builds image classifiers from the transformers library: a backbone, pooling, and a linear classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drivetrain.job import Job
from drivetrain.models.frozen_split import FrozenSplit
from drivetrain.models.networks.cnn import Classifier
from drivetrain.pretrained import families
from drivetrain.pretrained.folder import Pretrained, quiet_transformers


class VisionNetwork(Classifier):
    """A backbone with one linear classifier.

    Input (N, channels, H, W), output (N, classes).
    """

    def __init__(self, backbone: nn.Module, classes: int, width: int, pooling: str, dropout: float) -> None:
        super().__init__()
        # With `cls` pooling the pooler is unused and need not be saved and optimized.
        if pooling == "cls" and getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None  # type: ignore[assignment]
        self.backbone, self.pooling = backbone, pooling
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs(pool_features(self.backbone(pixel_values=images), self.pooling))

    def split_at_frozen(self, images: Tensor) -> FrozenSplit | None:
        """Split after the backbone if all of it is frozen."""
        if any(p.requires_grad for p in self.backbone.parameters()):
            return None
        return FrozenSplit(
            "the whole backbone",
            lambda images: (pool_features(self.backbone(pixel_values=images), self.pooling),),
            self.outputs,
        )

    @property
    def embeddings(self) -> nn.Module | None:
        """The stem, which `freeze: {embeddings: true}` freezes."""
        stem = getattr(self.backbone, "embeddings", getattr(self.backbone, "embedder", None))
        return stem if isinstance(stem, nn.Module) else None

    @property
    def layers(self) -> nn.Module | None:
        """The layers counted by `freeze: {layers: N}`: transformer layers, or stages of a convolutional network."""
        config: Any = self.backbone.config
        count = getattr(config, "num_hidden_layers", 0) or len(getattr(config, "depths", ()))
        lists = (module for module in self.backbone.modules() if isinstance(module, nn.ModuleList))
        return next((layers for layers in lists if len(layers) == count), None)


def pool_features(output: Any, pooling: str) -> Tensor:
    """Pool the output of a backbone to one feature vector per image, (N, width)."""
    hidden = output.last_hidden_state
    if pooling == "cls":
        return hidden[:, 0]  # type: ignore[no-any-return]
    pooled = getattr(output, "pooler_output", None)
    if pooled is not None:
        return pooled.flatten(1)  # type: ignore[no-any-return]
    return hidden.mean(dim=(2, 3) if hidden.dim() == 4 else 1)  # type: ignore[no-any-return]


def build_untrained(config: Mapping[str, Any]) -> nn.Module:
    """Build a network of transformers with random weights, from the content of its config.json.

    Raises:
        ValueError: if the library would load more than the configuration.
    """
    settings = {name: value for name, value in config.items() if name != "model_type"}
    external_entry = families.find_external_entry(config)
    with quiet_transformers() as transformers:
        if not external_entry:
            built = transformers.AutoConfig.for_model(config["model_type"], **settings)
            external_entry = families.find_external_entry(built.to_dict())
        if external_entry:
            raise ValueError(f"{external_entry} would load other files or code")
        return transformers.AutoModel.from_config(built, trust_remote_code=False)  # type: ignore[no-any-return]


def build(
    *, config: Mapping[str, object], classes: int, width: int, pooling: Literal["cls", "pooled"], dropout: float
) -> nn.Module:
    """Build the network with random weights. Arguments are plain values, stored in `model/`.

    Args:
        config: configuration of the backbone, as in the config.json of transformers.
        classes: number of outputs.
        width: length of the feature vector.
        pooling: kind of pooling to an image's vector.
        dropout: rate before the classifier.

    Raises:
        ValueError: if the library would load more than the configuration.
    """
    return VisionNetwork(build_untrained(config), classes, width, pooling, dropout)


def build_from_folder(
    job: Job, source: Pretrained, classes: int, channels: int, size: int, dropout: float
) -> VisionNetwork:
    """Build the network of a pretrained folder, and try it with an image of the job's size.

    Raises:
        SpecError: if it cannot process such an image.
    """
    backbone, pooling = source.network(), families.choose_vision_pooling(source.config)
    backbone.eval()
    try:
        with quiet_transformers(), torch.inference_mode():
            width = pool_features(backbone(pixel_values=torch.zeros(1, channels, size, size)), pooling).shape[1]
    except Exception as error:  # the library's networks may raise anything; here it means that the image does not fit
        required_size = getattr(source.config, "image_size", None)
        raise job.spec_error(
            ("model", "name"),
            f"{source.folder} is a {source.config.model_type}, which does not accept images with {channels} channels and "
            f"{size} pixels a side: {type(error).__name__}: {str(error)[:200]}",
            f"images of {required_size} pixels a side"
            if required_size
            else "networks that take pixels: vit, convnext, resnet",
            f"set data.image_size: {required_size}" if required_size else "use another folder",
        ) from None
    return VisionNetwork(backbone.train(), classes, width, pooling, dropout)
