"""Determines the properties of a network and its data on which decisions depend."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from runtime.data.dataset import Dataset
from runtime.job.workload import CACHE_PAYS, Workload
from runtime.models import feature_cache, layout_trial, packing_trial, recompute
from runtime.models.frozen_split import CacheSaving
from runtime.models.unfreezing import Unfreezing

ALL_ALONG = Unfreezing()
"""What is frozen stays frozen."""


def inspect_network(model: nn.Module) -> Workload:
    """Properties of a network whose data is not known."""
    kinds: dict[str, int] = {}
    for module in model.modules():
        if not list(module.children()) or "Attention" in type(module).__name__:
            kinds[type(module).__name__] = kinds.get(type(module).__name__, 0) + 1
    parameters = sum(p.numel() for p in model.parameters())
    embedded = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Embedding))
    return Workload(
        layers=kinds,
        parameters=parameters,
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        blocks=len(recompute.repeated(model)),
        token_work=6.0 * max(0, parameters - embedded),
    )


def inspect_workload(dataset: Dataset, model: nn.Module, unfreezing: Unfreezing = ALL_ALONG) -> Workload:
    """Properties of model and data that decisions depend on.

    The frozen prefix is that of the first epoch; its bytes are enough for those of all epochs. Trainable are the
    parameters that are trained at any time.
    """
    inputs = dataset.train.gather(torch.arange(1).numpy())
    with unfreezing.during(model, unfreezing.last):
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    saving = feature_cache.saving(dataset, model)
    later = list[CacheSaving]()
    for epoch in unfreezing.epochs if saving else ():
        with unfreezing.during(model, epoch):
            found = feature_cache.saving(dataset, model)
        later += [found] if found and found.work >= CACHE_PAYS else []
    return replace(
        inspect_network(model),
        trainable=trainable,
        sample_bytes=sum(x[0].numel() * x.element_size() for x in inputs),
        samples=len(dataset.train) + len(dataset.validation),
        decoded=dataset.decoded,
        indivisible=dataset.loss.division.obstacle if dataset.loss else "",
        ragged=hasattr(dataset.train, "lengths"),
        numeric=any(not head.classes for head in dataset.heads.values()),
        layout_obstacle=layout_trial.obstacle(model, dataset),
        token_bytes=packing_trial.token_bytes(model),
        prefix=saving.name if saving else "",
        prefix_ragged=saving.ragged if saving else False,
        prefix_bytes=max(feature_cache.total(dataset, each) for each in (saving, *later)) if saving else 0,
        prefix_share=saving.share if saving else 0.0,
        prefix_work=saving.work if saving else 0.0,
    )
