"""Finds out whether the heads of a network can be solved: whether they are linear, and nothing else is trained at first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drivetrain.data.dataset import Dataset
from drivetrain.job import Job
from drivetrain.models import feature_cache, frozen_split
from drivetrain.models.build import Model
from drivetrain.optimizations.feature_cache import describe_changing_inputs
from drivetrain.system.units import format_bytes
from drivetrain.training.step import Step
from drivetrain.training.user_parts import UserParts

MEMORY_DIVISOR = 4
"""The features may take 1/MEMORY_DIVISOR of the free memory."""


@dataclass(frozen=True)
class HeadTraining:
    """What decides whether the heads of a network are solved."""

    job: Job
    network: Model
    dataset: Dataset
    step: Step
    parts: UserParts
    processes: int
    free_memory: int
    """Bytes."""

    def find_heads(self) -> tuple[dict[str, nn.Linear], str]:
        """The layer of each head that is solved, none if they are not, and why not where only heads are trained at first.

        Raises:
            SpecError: if `train.solve_heads` asks for what is not possible.
        """
        requested = self.job.train.solve_heads
        if requested is False:
            return {}, ""
        layers = self._find_trained_heads()
        obstacle = self._find_obstacle(layers)
        if obstacle and requested is True:
            raise self.job.spec_error(
                ("train", "solve_heads"),
                f"is true, but {obstacle}",
                "a network of which only linear outputs are trained, and inputs that do not change",
                "set auto, or model.freeze",
            )
        return ({}, obstacle if layers else "") if obstacle else (layers, "")

    def _find_trained_heads(self) -> dict[str, nn.Linear]:
        """The linear layers of the heads, if they are all that is trained at first; else none."""
        first = {
            name for name, p in self.step.model.named_parameters() if p.requires_grad
        } - self.network.unfreezing.first.keys()
        linear = {name: layer for name, layer in self.step.model.named_modules() if isinstance(layer, nn.Linear)}
        trained = {
            name: layer
            for name, layer in linear.items()
            if first.issuperset(f"{name}.{part}" for part, _ in layer.named_parameters(recurse=False))
        }
        of_layers = {f"{name}.{part}" for name, layer in trained.items() for part, _ in layer.named_parameters()}
        if self.step.options.divided or first != of_layers or len(trained) != len(self.dataset.heads):
            return {}
        return self._match_heads(trained.values())

    def _match_heads(self, layers: Iterable[nn.Linear]) -> dict[str, nn.Linear]:
        """The layer whose output is that of the network, by head; none unless every head has one."""
        computed: list[tuple[nn.Linear, Tensor]] = []
        handles = [
            layer.register_forward_hook(lambda self, _, output: computed.append((self, output))) for layer in layers
        ]
        try:
            with frozen_split.evaluating(self.step.model), torch.no_grad():
                inputs = tuple(x.to(self.step.device) for x in feature_cache.take_first_sample(self.dataset))
                outputs = self.step.model(*self.step.lay_out(inputs))
        finally:
            for handle in handles:
                handle.remove()
        by_head = outputs if isinstance(outputs, Mapping) else dict.fromkeys(self.dataset.heads, outputs)
        return {name: layer for name in self.dataset.heads for layer, output in computed if output is by_head[name]}

    def _find_obstacle(self, layers: Mapping[str, nn.Linear]) -> str | None:
        """Why the heads cannot be solved, or by themselves are not."""
        job, requested = self.job, self.job.train.solve_heads is True
        if len(layers) != len(self.dataset.heads):
            return "more than linear outputs is trained in the first epoch"
        if self.network.freeze.train_mode:
            return "model.freeze.train_mode lets the features change from step to step"
        if self.network.builder in ("own", "python") and not requested:
            return "the network is yours"
        if self.processes > 1:
            return "several processes train"
        if self.parts.optimizer or self.parts.schedule or self.parts.callbacks.on_step:
            return "the program brings an optimizer, a schedule or on_step"
        if self.dataset.loss is not None or getattr(job.train.loss, "name", "") == "focal":
            return "this loss is not known to be convex"
        if job.train.ema:
            return "train.ema averages the weights of steps"
        if self.dataset.views:
            return "data.augment.views gives every sample several features"
        if changing := describe_changing_inputs(job):
            return changing
        width = sum(layer.in_features for layer in layers.values())
        needed = 4 * width * (len(self.dataset.train) + len(self.dataset.validation))
        if needed * MEMORY_DIVISOR > (available := self.free_memory):
            return f"the features take {format_bytes(needed)}, more than a quarter of the {format_bytes(available)} that are free"
        return None
