"""A job's network: built from the spec for the data at hand, and rebuilt from what `model/` stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runtime import draws, pretrained
from runtime.data.dataset import Dataset
from runtime.job import Job
from runtime.job.job import ImageJob
from runtime.job.model import Freeze
from runtime.job.texts import TextEncoder, TextJob, TextPretrained
from runtime.models import family, images, texts


@dataclass
class Model:
    """A network and how to build it again."""

    module: nn.Module
    builder: str
    """Key of BUILDERS."""
    arguments: dict[str, Any]
    """Plain JSON arguments of the builder."""
    freeze: Freeze


BUILDERS: dict[str, Callable[..., nn.Module]] = {"images": images.build, "texts": texts.build}


def build(job: Job, dataset: Dataset) -> Model:
    """The network of a job, its first weights a function of the job's seed."""
    torch.manual_seed(draws.key(job.train.seed, "weights"))
    if isinstance(job, ImageJob):
        return _image_network(job, dataset)
    if isinstance(job, TextJob):
        return _text_network(job, dataset)
    raise AssertionError(f"no network for {job.task}")


def _image_network(job: ImageJob, dataset: Dataset) -> Model:
    spec = job.model
    arguments = {
        "name": spec.name, "channels": dataset.preprocessing["channels"], "classes": dataset.heads[""].outputs,
        "image_size": dataset.preprocessing["image_size"], "width": spec.width, "dropout": spec.dropout,
        "stem": spec.stem,
    }  # fmt: skip
    return Model(images.build(**arguments), "images", arguments, spec.freeze)


def _text_network(job: TextJob, dataset: Dataset) -> Model:
    spec = job.model
    outputs = {name: head.outputs for name, head in dataset.heads.items()}
    if isinstance(spec, TextPretrained):
        return _pretrained_text_network(spec, pretrained.find(job, spec.name), outputs, dataset)
    assert isinstance(spec, TextEncoder)
    config = family.bert(
        vocabulary=dataset.preprocessing["vocabulary"], pad=dataset.preprocessing["tokenizer"]["pad"],
        longest=dataset.preprocessing["max_length"], layers=spec.layers, width=spec.width, heads=spec.heads,
        dropout=spec.dropout,
    )  # fmt: skip
    arguments = {"config": config, "outputs": outputs, "pooling": spec.pooling, "dropout": spec.dropout}
    return Model(texts.build(**arguments), "texts", arguments, spec.freeze)


def _pretrained_text_network(
    spec: TextPretrained, found: pretrained.Pretrained, outputs: dict[str, int], dataset: Dataset
) -> Model:
    pooling = family.pooling(found.config) if spec.pooling == "auto" else spec.pooling
    dropout = family.dropout(found.config) if spec.dropout is None else spec.dropout
    network = texts.TextNetwork(found.network(), outputs, pooling, dropout)
    texts.probe(network, found, dataset.preprocessing["max_length"])
    arguments = {"config": found.config.to_dict(), "outputs": outputs, "pooling": pooling, "dropout": dropout}
    return Model(network, "texts", arguments, spec.freeze)
