"""Finds the heads of a network that can be solved: they must be linear, and nothing else may be trained at first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Dataset
from drivetrain.errors import Problem, SpecError
from drivetrain.job import Job
from drivetrain.job.text import TextEncoder
from drivetrain.models import feature_cache, frozen_split
from drivetrain.models.build import BuiltModel
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.models.networks.word_bag import WordBag
from drivetrain.optimizations.feature_cache import describe_changing_inputs
from drivetrain.system.units import format_bytes
from drivetrain.training.head_solver import SPARSE_HISTORY, Solution
from drivetrain.training.sparse_rows import SparseRows
from drivetrain.training.user_parts import UserParts

MEMORY_DIVISOR = 4
"""The features may take one part in this many of the free memory."""
MAX_PRODUCTS = 5_000_000_000
"""Largest number of multiplications for the outputs of all texts. A quarter of it took 38 s of CPU time to solve, as long as
3,500 steps (80,000 texts of 120 tokens, 50 outputs).
"""


class LayerHead:
    """A head that is a linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        self.module = layer
        self.width, self.outputs, self.has_bias = layer.in_features, layer.out_features, layer.bias is not None

    def read_features(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Read the input vectors of the layer."""
        return inputs[0].flatten(0, -2).float()

    def join_features(self, batches: Sequence[Any]) -> Tensor:
        """Join the features of several batches in a new tensor."""
        return torch.cat([*batches]).clone()

    def load(self, solution: Solution) -> None:
        """Set the weights."""
        self.module.weight.copy_(solution.weight)
        if solution.bias is not None:
            self.module.bias.copy_(solution.bias)


class BagHead:
    """A head of a bag of words."""

    has_bias = True

    def __init__(self, bag: WordBag, number: int) -> None:
        self.module, self.number = bag, number
        self.width, self.outputs = bag.width, bag.output_counts[number]

    def read_features(self, inputs: tuple[Tensor, ...]) -> SparseRows:
        """Read the counts of words and pairs."""
        return SparseRows.from_padded(*self.module.read_columns(*inputs), self.width)

    def join_features(self, batches: Sequence[Any]) -> SparseRows:
        """Join the features of several batches in new tensors."""
        return SparseRows.join(batches)

    def load(self, solution: Solution) -> None:
        """Set the weights."""
        assert solution.bias is not None
        assert solution.rarity is not None
        self.module.load_head(self.number, solution.weight, solution.bias, solution.rarity)


SolvableHead = LayerHead | BagHead
"""A linear head: its outputs are the product of weights and the features that it reads from its module's inputs."""


@dataclass(frozen=True)
class HeadTraining:
    """Decides whether the heads of a run are solved instead of trained."""

    job: Job
    built_model: BuiltModel
    dataset: Dataset
    forward: ForwardPass
    user_parts: UserParts
    processes: int
    free_memory: int
    """Bytes."""

    def find_heads(self) -> tuple[Mapping[str, SolvableHead], str]:
        """Find the heads to solve by name; if there are none, also the reason why heads trained alone are not solved.

        Raises:
            SpecError: if `train.solve_heads` is true and the heads cannot be solved.
        """
        requested = self.job.train.solve_heads
        if requested is False:
            return {}, ""
        layers, bags = self._find_trained_heads(), self._find_bags()
        heads: Mapping[str, SolvableHead] = layers or bags
        obstacle = self._find_obstacle(heads)
        if obstacle is None:
            obstacle = self._find_obstacle_of_bags(bags) if bags else self._find_lack_of_memory(layers)
        if obstacle is None:
            return heads, ""
        if requested is True:
            raise SpecError(self._refuse(obstacle))
        return {}, obstacle if heads else ""

    def _refuse(self, obstacle: str) -> Problem:
        return self.job.problem(
            ("train", "solve_heads"),
            f"is true, but {obstacle}",
            "a network in which only linear outputs are trained, and inputs that do not change",
            "set auto, or model.freeze",
        )

    def _find_bags(self) -> dict[str, BagHead]:
        """Find the heads of a bag of words that is trained as a whole; empty for other networks."""
        bag = self.forward.network
        if not isinstance(bag, WordBag) or not all(parameter.requires_grad for parameter in bag.parameters()):
            return {}
        return {name: BagHead(bag, number) for number, name in enumerate(bag.names)}

    def _find_trained_heads(self) -> dict[str, LayerHead]:
        """Find the linear layers of the heads if nothing else is trained at first, else return an empty dictionary."""
        network = self.forward.network
        trained = {name for name, p in network.named_parameters() if p.requires_grad}
        trained -= self.built_model.unfreezing.first_epochs.keys()
        layers: list[nn.Linear] = []
        layer_parameters: set[str] = set()
        for layer_name, layer in network.named_modules():
            if isinstance(layer, nn.Linear):
                names = {f"{layer_name}.{name}" for name, _ in layer.named_parameters()}
                if names <= trained:
                    layers.append(layer)
                    layer_parameters |= names
        if trained != layer_parameters or len(layers) != len(self.dataset.heads):
            return {}
        skip = getattr(network, "skip", None)
        # A network that starts from other weights adds more to the outputs than the linear model.
        if skip is not None and layers == [skip] and not network.classifier.weight.any():  # type: ignore[union-attr,operator]
            return {name: LayerHead(skip) for name in self.dataset.heads}
        return self._match_heads(layers)

    def _match_heads(self, layers: Iterable[nn.Linear]) -> dict[str, LayerHead]:
        """Find the layer of each head: its output is the head's output itself."""
        computed: list[tuple[nn.Linear, Tensor]] = []
        with contextlib.ExitStack() as hooks, frozen_split.evaluating(self.forward.network), torch.no_grad():
            for layer in layers:
                hooks.enter_context(
                    layer.register_forward_hook(lambda self, _, output: computed.append((self, output)))
                )
            inputs = tuple(x.to(self.forward.device) for x in feature_cache.take_first_sample(self.dataset))
            outputs = self.forward.network(*self.forward.lay_out(inputs))
        by_head = outputs if isinstance(outputs, Mapping) else dict.fromkeys(self.dataset.heads, outputs)
        heads = {}
        for name in self.dataset.heads:
            for layer, output in computed:
                if output is by_head[name]:
                    heads[name] = LayerHead(layer)
        return heads

    def _find_obstacle(self, heads: Mapping[str, SolvableHead]) -> str | None:
        """Explain why the heads cannot be solved, or are solved only on request; None if they are solved."""
        job, requested = self.job, self.job.train.solve_heads is True
        if len(heads) != len(self.dataset.heads):
            return "more than linear outputs is trained in the first epoch"
        if self.built_model.builder in ("own", "python") and not requested:
            return "the network is yours"
        if self.built_model.freeze.train_mode:
            return "model.freeze.train_mode lets the features change from step to step"
        if self.processes > 1:
            return "several processes train"
        if self.user_parts.optimizer or self.user_parts.schedule or self.user_parts.callbacks.on_step:
            return "the program brings an optimizer, a schedule or on_step"
        if self.dataset.loss is not None or getattr(job.train.loss, "name", "") == "focal":
            return "this loss is not known to be convex"
        if job.train.ema:
            return "train.ema averages the weights of steps"
        if self.dataset.views:
            return "data.augment.views gives every sample several features"
        return describe_changing_inputs(job)

    def _find_obstacle_of_bags(self, heads: Mapping[str, BagHead]) -> str | None:
        """Explain why a bag of words cannot be solved, or is solved only on request; None if it is solved."""
        model: Any = getattr(self.job, "model", None)
        if not isinstance(model, TextEncoder):
            return "it starts from weights, which a solution would replace"
        if model.weights:
            return "it starts from model.weights, which a solution would replace"
        # The default is meant for encoders and has no effect, which a message says.
        if model.dropout and model.dropout != TextEncoder.model_fields["dropout"].default:
            return f"model.dropout: {model.dropout:g} drops other words in every step"
        splits: list[Any] = [self.dataset.train, self.dataset.validation]
        if any(getattr(split, "lengths", None) is None for split in splits):
            return "the texts are read on demand"
        # One word and one pair of words for each token.
        values = 2 * sum(int(np.sum(split.lengths)) for split in splits)
        outputs, width = sum(head.outputs for head in heads.values()), max(head.width for head in heads.values())
        if values * outputs > MAX_PRODUCTS and self.job.train.solve_heads is not True:
            return f"{values:,} words and pairs with {outputs} outputs take minutes; true solves them anyway"
        # 48 bytes for a value with its columns in three sorted copies; weights, gradients and the solver's history of both.
        return self._compare_with_memory(48 * values + 4 * width * outputs * (2 * SPARSE_HISTORY + 10))

    def _find_lack_of_memory(self, heads: Mapping[str, LayerHead]) -> str | None:
        width = sum(head.width for head in heads.values())
        return self._compare_with_memory(4 * width * (len(self.dataset.train) + len(self.dataset.validation)))

    def _compare_with_memory(self, needed: int) -> str | None:
        """Explain that `needed` bytes of features are too many; None if they fit."""
        if needed * MEMORY_DIVISOR <= self.free_memory:
            return None
        free = format_bytes(self.free_memory)
        return f"the features take {format_bytes(needed)}, more than a quarter of the {free} that are free"
