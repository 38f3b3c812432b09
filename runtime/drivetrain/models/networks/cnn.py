"""Implements convolutional networks for images: a small CNN, and ResNets (He et al. 2016) with two kinds of stem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from drivetrain.models.frozen_split import FrozenSplit, split_sequence

STAGE_BLOCKS: dict[str, tuple[int, ...]] = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
}
"""Number of blocks of each stage."""
MAX_SMALL_IMAGE_SIDE = 96
"""Largest side in pixels of images for the small stem of a ResNet."""


class _GlobalAverage(nn.Module):
    """Global average pooling: (N, C, H, W) to (N, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class Classifier(nn.Module):
    """An image network whose last layers are `dropout` and a linear `classifier`."""

    def outputs(self, vector: Tensor) -> Tensor:
        """Compute class outputs (N, classes) from feature vectors (N, width)."""
        return self.classifier(self.dropout(vector))  # type: ignore[operator, no-any-return]


class SmallCnn(Classifier):
    """Three stages of two 3x3 convolutions with BatchNorm; for images from 8x8 up.

    Input (N, channels, H, W), output (N, classes).
    """

    def __init__(self, channels: int, classes: int, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels_in = channels
        for channels_out in (width, 2 * width, 4 * width):
            stages += [
                *_build_conv_norm(channels_in, channels_out),
                nn.ReLU(inplace=True),
                *_build_conv_norm(channels_out, channels_out),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2, ceil_mode=True),
            ]
            channels_in = channels_out
        self.features = nn.Sequential(*stages)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.classifier = nn.Linear(channels_in, classes)
        initialize_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs(self.features(images).mean(dim=(2, 3)))

    def split_at_frozen(self, images: Tensor) -> FrozenSplit | None:
        """Split before the first trainable convolution."""
        return split_sequence("layers", [*self.features, _GlobalAverage()], self.outputs)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *_build_conv_norm(channels_in, width, stride=stride), nn.ReLU(inplace=True), *_build_conv_norm(width, width)
        )
        self.shortcut = _build_shortcut(channels_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * self.expansion
        self.main = nn.Sequential(
            *_build_conv_norm(channels_in, width, kernel=1),
            nn.ReLU(inplace=True),
            *_build_conv_norm(width, width, stride=stride),
            nn.ReLU(inplace=True),
            *_build_conv_norm(width, channels_out, kernel=1),
        )
        self.shortcut = _build_shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


class ResNet(Classifier):
    """ResNet with a 3x3 stem (small images) or a 7x7 stem with max pooling.

    Input (N, channels, H, W), output (N, classes).
    """

    def __init__(
        self, name: str, channels: int, classes: int, width: int = 64, dropout: float = 0.0, small: bool = True
    ) -> None:
        super().__init__()
        block: type[BasicBlock] | type[Bottleneck] = Bottleneck if name == "resnet50" else BasicBlock
        self.stem = build_stem(channels, width, small)
        channels_in, stages = width, []
        for index, block_count in enumerate(STAGE_BLOCKS[name]):
            stages.append(_build_stage(block, channels_in, width << index, block_count, stride=1 if index == 0 else 2))
            channels_in = (width << index) * block.expansion
        self.stages = nn.Sequential(*stages)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.classifier = nn.Linear(channels_in, classes)
        initialize_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs(self.stages(self.stem(images)).mean(dim=(2, 3)))

    def split_at_frozen(self, images: Tensor) -> FrozenSplit | None:
        """Split before the first trainable block."""
        blocks = [block for stage in self.stages for block in stage]  # type: ignore[attr-defined]
        return split_sequence("parts", [self.stem, *blocks, _GlobalAverage()], self.outputs)


def build_stem(channels: int, width: int, small: bool) -> nn.Sequential:
    """Build the first layers: the small stem keeps the resolution, the large stem divides height and width by 4."""
    if small:
        return nn.Sequential(*_build_conv_norm(channels, width), nn.ReLU(inplace=True))
    return nn.Sequential(
        *_build_conv_norm(channels, width, kernel=7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def _build_stage(
    block: type[BasicBlock] | type[Bottleneck], channels_in: int, width: int, block_count: int, stride: int
) -> nn.Sequential:
    blocks: list[nn.Module] = [block(channels_in, width, stride)]
    blocks += [block(width * block.expansion, width, 1) for _ in range(block_count - 1)]
    return nn.Sequential(*blocks)


def _build_conv_norm(channels_in: int, channels_out: int, kernel: int = 3, stride: int = 1) -> Sequence[nn.Module]:
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(channels_out)


def _build_shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    if channels_in == channels_out and stride == 1:
        return nn.Identity()
    return nn.Sequential(*_build_conv_norm(channels_in, channels_out, kernel=1, stride=stride))


def initialize_weights(model: nn.Module) -> None:
    """Initialize convolutions with Kaiming normal (He et al. 2015), the classifier with truncated normal (0.02)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)


def build(
    name: str,
    *,
    channels: int,
    classes: int,
    image_size: int,
    width: int | None = None,
    dropout: float = 0.0,
    stem: Literal["auto", "small", "large"] = "auto",
) -> nn.Module:
    """Build a network by its name. Arguments are plain values, which `model/` stores to build the network again."""
    if name == "small-cnn":
        return SmallCnn(channels, classes, width or 32, dropout)
    is_small = image_size <= MAX_SMALL_IMAGE_SIDE if stem == "auto" else stem == "small"
    return ResNet(name, channels, classes, width or 64, dropout, is_small)
