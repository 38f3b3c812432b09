"""The `model:` section of the spec: a built-in network, one from a library, or the user's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, JsonValue, Tag

from drivetrain.job.values import Count, FilePath, Fraction, Natural, Revision, Spec, accept_name


class Freeze(Spec):
    """Layers that are not trained; they run in evaluation mode by default."""

    body: bool = Field(
        False, description="freeze all layers but the outputs, which are then solved (train.solve_heads)"
    )
    embeddings: bool = Field(False, description="freeze the embeddings")
    layers: Natural = Field(0, description="freeze the first N layers")
    names: tuple[str, ...] = Field((), description="freeze parameters by name pattern: `conv*`", strict=False)
    train_mode: bool = Field(False, description="keep dropout and BatchNorm of frozen layers in training mode")

    @property
    def any(self) -> bool:
        """Whether anything is frozen."""
        return bool(self.body or self.embeddings or self.layers or self.names)


class Unfreeze(Spec):
    """Frozen layers that are trained from an epoch on."""

    epoch: Annotated[int, Field(ge=2, le=2**31 - 1)] = Field(description="first epoch in which the layers are trained")
    names: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description="layers or parameters by name pattern, as in freeze: [stages.3]", strict=False
    )


LATER = "frozen layers that are trained later: [{epoch: 3, names: [stages.3]}] trains them from the third epoch on"


class BuiltIn(Spec):
    """Keys that all built-in networks share."""

    freeze: Freeze = Field(Freeze(), description="layers that are not trained")
    unfreeze: tuple[Unfreeze, ...] = Field((), description=LATER, strict=False)


class WithWeights(BuiltIn):
    """Keys of networks that start with random weights unless a file is given."""

    weights: FilePath | None = Field(
        None, description="a .safetensors file to start from; its names and shapes must fit the network, except outputs"
    )


class EarlierRun(BuiltIn):
    """The network of an earlier run, with its weights and preprocessing; `from: runs/NAME-001` is the short form."""

    source: Literal["run"]
    name: FilePath = Field(description="a run folder, or a model folder")


RESNET_WEIGHTS = {name: f"timm/{name}.a1_in1k" for name in ("resnet18", "resnet34", "resnet50")}
"""ImageNet weights on the Hugging Face hub (Wightman et al. 2021), for `pretrained: true`."""


class ConvolutionalNetwork(WithWeights):
    """Convolutional networks for images and spectrograms."""

    name: Literal["small-cnn", "resnet18", "resnet34", "resnet50"] = Field(description="architecture")
    width: Count | None = Field(None, description="channels of the first stage; 32 for small-cnn, 64 for a ResNet")
    dropout: Fraction = Field(0.0, description="dropout before the classifier")
    stem: Literal["small", "large", "auto"] = Field(
        "auto",
        description="first layers. small: 3x3 with stride 1; large: 7x7 with stride 2, then pooling, which keeps a sixteenth of "
        "the pixels; auto: small up to image_size 96 without pretrained weights",
    )


class ImageNetwork(ConvolutionalNetwork):
    """Convolutional networks for images, perhaps with pretrained weights."""

    pretrained: bool | FilePath = Field(
        False,
        description="true: start a ResNet from ImageNet weights on the Hugging Face hub; or a folder or another name there",
    )
    revision: Revision | None = Field(None, description="branch, tag or commit on the hub; main if absent")


class ImagePretrained(BuiltIn):
    """A pretrained image network in Hugging Face format: vit, convnext, resnet, any AutoModel that takes pixels."""

    source: Literal["transformers"]
    name: FilePath = Field(description="a local folder, or a name on the Hugging Face hub")
    revision: Revision | None = Field(None, description="branch, tag or commit on the hub; main if absent")
    dropout: Fraction = Field(0.0, description="dropout before the classifier")


class ImageTimm(BuiltIn):
    """An architecture of the timm library."""

    source: Literal["timm"]
    name: str = Field(
        min_length=1,
        description="architecture, as in timm.list_models(); with its tag for `pretrained: true`: `efficientnet_b0.ra_in1k`",
    )
    pretrained: bool | FilePath = Field(
        False,
        description="true: start from the weights of this architecture on the Hugging Face hub; or a folder or name there",
    )
    revision: Revision | None = Field(None, description="branch, tag or commit on the hub; main if absent")
    weights: FilePath | None = Field(None, description=".safetensors file with its weights; random ones if absent")
    dropout: Fraction = Field(0.0, description="dropout before the classifier")


class CustomModel(Spec):
    """Your own network: a file next to the job file with a function that returns a torch.nn.Module."""

    file: FilePath = Field(description="Python file next to the job file")
    factory: str = Field("build", description="function in the file that returns the module")
    arguments: dict[str, JsonValue] = Field({}, description="keyword arguments of the function")
    weights: FilePath | None = Field(
        None, description="a .safetensors file to start from; its names and shapes must fit the network, except outputs"
    )
    freeze: Freeze = Field(Freeze(), description="layers that are not trained")
    unfreeze: tuple[Unfreeze, ...] = Field((), description=LATER, strict=False)


def choose_model_kind(value: object) -> str:
    """Choose the tag for a value of `model:`: `own` for a file, the `source:` if there is one, else `built-in`."""
    keys = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    if "file" in keys:
        return "own"
    return str(keys.get("source", "built-in"))


ImageModel = Annotated[
    Annotated[ImageNetwork, Tag("built-in")]
    | Annotated[ImagePretrained, Tag("transformers")]
    | Annotated[ImageTimm, Tag("timm")]
    | Annotated[EarlierRun, Tag("run")]
    | Annotated[CustomModel, Tag("own")],
    Discriminator(choose_model_kind),
    accept_name(),
]
