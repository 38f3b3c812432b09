"""Networks for images from the transformers library: a backbone, a vector for each image, and the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from runtime.errors import SpecError
from runtime.job import Job
from runtime.models.frozen_split import FrozenSplit
from runtime.pretrained import families
from runtime.pretrained.folder import Pretrained, quiet


class VisionNetwork(nn.Module):
    """A backbone with one linear output.

    Input (N, channels, H, W), output (N, classes).
    """

    def __init__(self, backbone: nn.Module, classes: int, width: int, pooling: str, dropout: float) -> None:
        super().__init__()
        # The pooler of a network that is read at its first token would hold weights that nothing uses.
        if pooling == "cls" and getattr(backbone, "pooler", None) is not None:
            backbone.pooler = None  # type: ignore[assignment]
        self.backbone, self.pooling = backbone, pooling
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs(vectors(self.backbone(pixel_values=images), self.pooling))

    def outputs(self, vector: Tensor) -> Tensor:
        """Outputs (N, classes) for a vector for each image (N, width)."""
        return self.classifier(self.dropout(vector))  # type: ignore[no-any-return]

    def divided(self, images: Tensor) -> FrozenSplit | None:
        """A frozen backbone is its vectors alone."""
        if any(p.requires_grad for p in self.backbone.parameters()):
            return None
        return FrozenSplit(
            "the whole backbone",
            lambda images: (vectors(self.backbone(pixel_values=images), self.pooling),),
            self.outputs,
        )

    @property
    def embeddings(self) -> nn.Module | None:
        """What `freeze: {embeddings: true}` freezes: the stem."""
        found = getattr(self.backbone, "embeddings", getattr(self.backbone, "embedder", None))
        return found if isinstance(found, nn.Module) else None

    @property
    def layers(self) -> nn.Module | None:
        """What `freeze: {layers: N}` counts: layers of a transformer, stages of a convolutional network."""
        config: Any = self.backbone.config
        count = getattr(config, "num_hidden_layers", 0) or len(getattr(config, "depths", ()))
        lists = (part for part in self.backbone.modules() if isinstance(part, nn.ModuleList))
        return next((part for part in lists if len(part) == count), None)


def vectors(output: Any, pooling: str) -> Tensor:
    """One vector for each image, (N, width)."""
    hidden = output.last_hidden_state
    if pooling == "cls":
        return hidden[:, 0]  # type: ignore[no-any-return]
    pooled = getattr(output, "pooler_output", None)
    if pooled is not None:
        return pooled.flatten(1)  # type: ignore[no-any-return]
    return hidden.mean(dim=(2, 3) if hidden.dim() == 4 else 1)  # type: ignore[no-any-return]


def build(*, config: Mapping[str, Any], classes: int, width: int, pooling: str, dropout: float) -> nn.Module:
    """A network with random weights; plain arguments, so that `model/` can store them and `predict` can call again.

    Args:
        config: of the backbone, as transformers writes it to config.json.
        classes: number of outputs.
        width: of an image's vector.
        pooling: `cls` or `pooled`.
        dropout: before the classifier.
    """
    settings = {name: value for name, value in config.items() if name != "model_type"}
    with quiet() as transformers:
        backbone = transformers.AutoModel.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **settings), trust_remote_code=False
        )
    return VisionNetwork(backbone, classes, width, pooling, dropout)


def from_folder(job: Job, found: Pretrained, classes: int, channels: int, size: int, dropout: float) -> VisionNetwork:
    """The network of a pretrained folder, tried with one image of the job.

    Raises:
        SpecError: if it cannot take such an image.
    """
    backbone, pooling = found.network(), families.vision_pooling(found.config)
    backbone.eval()
    try:
        with quiet(), torch.inference_mode():
            width = vectors(backbone(pixel_values=torch.zeros(1, channels, size, size)), pooling).shape[1]
    except Exception as error:  # whatever a network of the library raises, it does not fit
        wanted = getattr(found.config, "image_size", None)
        raise SpecError(
            [
                job.problem(
                    ("model", "name"),
                    f"{found.folder} is a {found.config.model_type}, which takes no image of {channels} channels and "
                    f"{size} pixels a side: {type(error).__name__}: {str(error)[:200]}",
                    f"images of {wanted} pixels a side"
                    if wanted
                    else "networks that take pixels: vit, convnext, resnet",
                    f"set data.image_size: {wanted}" if wanted else "use another folder",
                )
            ]
        ) from None
    return VisionNetwork(backbone.train(), classes, width, pooling, dropout)
