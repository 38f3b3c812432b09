"""Shows where in a picture a convolutional network saw its class, by LayerCAM.

Jiang, Zhang, Hou, Cheng & Wei, "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization", IEEE TIP 2021: each
activation of a layer is weighted by its positive gradient of the class score. The layer used here is the end of the
last convolution stage with enough places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from drivetrain.data.dataset import NO_LABEL
from drivetrain.errors import SpecError
from drivetrain.inference.validation_samples import ValidationSamples
from drivetrain.system import torch_settings
from drivetrain.system.console import say_aside
from drivetrain.training.evaluation import worst_mistakes

MAX_RIGHT, MAX_TRIED = 4, 32
"""Right predictions that are shown next to the worst mistakes, and the number of samples searched for them."""
MIN_MAP_SIDE = 12
"""Places in height and width from which a stage is fine enough. On a square of a fifth of a picture of 32 x 32, that alone made its
class, lay 0.75 and 0.80 of the maps of a ResNet-18 at 16 x 16 places, 0.40 at 4 x 4, of a small CNN 0.55 and 0.30 at 16 x 16, 0.44 and
0.28 at 8 x 8 (two seeds).
"""
HEAT_OPACITY = 0.65
EMPTY_MAP_REASON = (
    "no place of the last convolutions speaks for the predicted class, whose score comes from the layers behind"
)


class LastStage:
    """The ends of the convolution stages in a forward pass of one picture: the last output with the places of a convolution."""

    def __init__(self) -> None:
        self.map_size: torch.Size | None = None
        """Height and width of the last convolution's output; None if there is none."""
        self.stages: dict[torch.Size, Tensor] = {}
        """The end of each stage (1, channels, height, width), by height and width, the last stage last."""
        self.mixing_layer = ""
        """A layer with weights for several places, or tokens, behind the stage, as in attention; empty if there is none."""

    def record(self, name: str, layer: nn.Module, output: object) -> None:
        """Record the output of a layer."""
        if not isinstance(output, Tensor):
            return
        # A convolution of a single place is a linear layer, for example in squeeze-and-excitation.
        if isinstance(layer, nn.Conv2d) and output.shape[-2:].numel() > 1:
            self.map_size = output.shape[-2:]
        if output.ndim == 4 and output.shape[-2:] == self.map_size:
            self.stages.pop(output.shape[-2:], None)
            self.stages[output.shape[-2:]], self.mixing_layer = output, ""
        elif sum(size > 1 for size in output.shape) > 1 and next(layer.parameters(recurse=False), None) is not None:
            self.mixing_layer = self.mixing_layer or name

    def choose_activations(self) -> Tensor | None:
        """Return the end of the last stage with enough places for a map, else of the last stage; None without a convolution."""
        return next(
            (output for size, output in reversed(self.stages.items()) if min(size) >= MIN_MAP_SIDE),
            self.stages.get(self.map_size) if self.map_size else None,
        )


def compute_map(network: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the LayerCAM map of a picture for its predicted class, and the outputs.

    Args:
        network: in evaluation mode.
        inputs: (1, channels, height, width), as the network takes them.

    Returns:
        The map (h, w), without negative values, and the outputs (1, classes).

    Raises:
        SpecError: if the network has no convolution, or mixes places after the last one.
    """
    stage = LastStage()
    hooks = [
        layer.register_forward_hook(lambda layer, _, output, name=name: stage.record(name, layer, output))
        for name, layer in network.named_modules()
        if name
    ]
    try:
        with torch.enable_grad(), torch_settings.use_default_switches():
            # Frozen layers have gradients of their inputs alone.
            outputs = network(inputs.detach().requires_grad_())
            outputs = outputs if isinstance(outputs, Tensor) else outputs[""]
            activations = stage.choose_activations()
            if activations is None or stage.mixing_layer or not activations.requires_grad:
                raise _make_unsuitable_error(stage)
            (gradients,) = torch.autograd.grad(outputs.max(), activations, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    if gradients is None:
        raise _make_unsuitable_error(stage)
    return (gradients.relu() * activations.detach()).sum(dim=1).relu()[0], outputs.detach()


def _make_unsuitable_error(stage: LastStage) -> SpecError:
    problem = (
        f"layer {stage.mixing_layer} mixes the places of a picture after the last convolution, as attention does"
        if stage.mixing_layer
        else "the outputs do not come from a convolution with gradients"
    )
    return SpecError(
        f"--explain: the network has no map of where it looked: {problem}",
        "networks that end with convolutions: small-cnn, resnet18, resnet34, resnet50, and those of timm and transformers",
        "train one of these, or evaluate without --explain",
    )


def draw_heat(picture: Image.Image, heat: Tensor) -> Image.Image:
    """Draw a map (h, w) over its picture, from red to yellow: the smallest value is clear, the largest has the full color."""
    # A picture of a few pixels gets more of them, since the map is smoother than it.
    factor = max(1, worst_mistakes.PICTURE_SIDE // max(picture.size))
    picture = picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)
    size = (picture.height, picture.width)
    resized = F.interpolate(heat[None, None].float().cpu(), size=size, mode="bilinear", align_corners=False)[0, 0]
    resized = resized - resized.min()
    strength: npt.NDArray[np.float32] = (resized / resized.max().clamp_min(1e-12)).numpy()[..., None]
    color = np.concatenate([np.full_like(strength, 255), 220 * strength, np.zeros_like(strength)], axis=2)
    opacity = HEAT_OPACITY * strength
    return Image.fromarray((np.asarray(picture) * (1 - opacity) + color * opacity).astype(np.uint8))


def explain(samples: ValidationSamples, mistakes: Sequence[int]) -> dict[str, object]:
    """Draw the heat maps of a run; `mistakes` are ids of the worst mistakes. Returns plain JSON data."""
    rows = list(explain_samples(samples, mistakes))
    empty_count = sum(row["empty"] for row in rows)
    say_aside(f"explain: heat maps of {len(rows)} samples, {len(mistakes)} of them the worst mistakes")
    if empty_count:
        say_aside(f"explain: {empty_count} of the maps are empty: {EMPTY_MAP_REASON}")
    return {"maps": rows, "empty_maps": empty_count}


def explain_samples(samples: ValidationSamples, mistakes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the worst mistakes, given by their ids, and some right predictions, each with a heat map over its picture."""
    truth = samples.data.validation.targets[""]
    tried = np.linspace(0, len(truth) - 1, min(len(truth), MAX_TRIED)).astype(np.int64).tolist()
    for sample in mistakes:
        yield _explain_sample(samples, sample)
    unseen_ids = [sample for sample in tried if sample not in mistakes and truth[sample] != NO_LABEL]
    rows = (_explain_sample(samples, sample) for sample in unseen_ids)
    yield from islice((row for row in rows if row["answer"] == row["truth"]), MAX_RIGHT)


def compute_sample_map(samples: ValidationSamples, sample: int) -> tuple[Tensor, Tensor]:
    """Compute the map and the outputs of a validation sample, as `compute_map` returns and raises."""
    ids = np.array([sample], np.int64)
    network = samples.trained.network.to(samples.device).eval()
    gathered = samples.data.validation.gather(ids)
    (inputs,) = samples.data.prepare(tuple(x.to(samples.device) for x in gathered), ids, None)
    return compute_map(network, inputs)


def _explain_sample(samples: ValidationSamples, sample: int) -> dict[str, Any]:
    split, classes = samples.data.validation, samples.heads[""].classes
    heat, outputs = compute_sample_map(samples, sample)
    probability, answer = outputs[0].float().softmax(dim=0).max(dim=0)
    picture = draw_heat(worst_mistakes.draw_picture(split, sample), heat)
    return {
        "title": split.title(sample),
        "truth": classes[int(split.targets[""][sample])],
        "answer": classes[int(answer)],
        "probability": round(float(probability), 6),
        "empty": not bool(heat.any()),
        "picture": worst_mistakes.encode_picture(picture),
    }
