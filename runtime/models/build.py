"""Builds a job's network from the spec and the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from runtime.data import stateless_random
from runtime.data.custom import user_code
from runtime.data.custom.user_code import Code
from runtime.data.dataset import Dataset
from runtime.data.labels import listed
from runtime.data.tables import features
from runtime.errors import SpecError
from runtime.job import Job
from runtime.job.images import ImageJob
from runtime.job.model import CustomModel, EarlierRun, Freeze, ImageNetwork, ImagePretrained, ImageTimm, WithWeights
from runtime.job.series import CnnLstmSpec, SeriesJob
from runtime.job.tables import MlpSpec, TableJob
from runtime.job.text import TextEncoder, TextJob, TextPretrained
from runtime.models import initial_weights, lr_groups, timm_resnet, unfreezing
from runtime.models.freeze import freeze, random_and_frozen
from runtime.models.networks import cnn, cnn_lstm, hf_vision, mlp, text_encoder, timm_vision, user_network
from runtime.models.unfreezing import Unfreezing
from runtime.pretrained import earlier_run, families, hub_name, timm_folder
from runtime.pretrained import folder as pretrained


@dataclass
class Model:
    """A network, and what is needed to build it again."""

    module: nn.Module
    builder: str
    """A key of `builders.BUILDERS`, `own` or `python`."""
    arguments: dict[str, Any]
    """Arguments of the builder; plain JSON values."""
    freeze: Freeze
    code: Code | None = None
    """The user's Python files that define the network; None for a built-in one."""
    notes: list[str] = field(default_factory=list)
    """What the user should know about the weights that the network starts with."""
    anew: set[str] = field(default_factory=set)
    """Tensors that an earlier run or a file of weights has no values for."""
    unfreezing: Unfreezing = field(default_factory=Unfreezing)
    """Frozen parameters that are trained later."""

    def trained(self) -> list[str]:
        """The parameters that are trained at any time, in the order of the network."""
        later = self.unfreezing.first
        return [name for name, p in self.module.named_parameters() if p.requires_grad or name in later]


def build(job: Job, dataset: Dataset) -> Model:
    """Build the network of a job: weights initialized from the job's seed, frozen parameters already frozen.

    Raises:
        SpecError: if the network cannot be loaded, or has no such layers to freeze, to unfreeze or to train.
    """
    made = _network(job, dataset)
    spec = getattr(job, "model", None)
    if isinstance(spec, WithWeights | CustomModel) and spec.weights:
        made.anew, notes = initial_weights.from_file(job, spec.weights, made.module, _outputs(made, dataset))
        made.notes += notes
    freeze(made.module, made.freeze, job)
    made.unfreezing = unfreezing.of(made.module, getattr(spec, "unfreeze", ()), job)
    lr_groups.groups(job, made.module, made.trained())
    made.notes += random_and_frozen(made.module, made.anew, made.unfreezing.first)
    started = getattr(spec, "weights", None) or hub_name.given(job)
    if isinstance(spec, WithWeights | ImageTimm) and not started and made.freeze != Freeze():
        frozen = {name for name, p in made.module.named_parameters() if not p.requires_grad}
        when = "never learn" if frozen - made.unfreezing.first.keys() else "learn only when they are unfrozen"
        made.notes.append(
            f"model.freeze freezes layers with random weights, which {when}; start from an earlier run "
            "(model: {from: runs/NAME-001}) or from a file (model.weights)"
        )
    made.notes += unfreezing.not_reached(made.unfreezing, job, len(dataset.train))
    return made


def _outputs(made: Model, dataset: Dataset) -> set[str]:
    """The tensors that depend on the number of outputs."""
    if made.builder == "own":
        return initial_weights.outputs_by_shape(made.module, dataset.heads)
    return initial_weights.outputs_of(made.builder, made.arguments)


def _network(job: Job, dataset: Dataset) -> Model:
    torch.manual_seed(stateless_random.key(job.train.seed, "weights"))
    if earlier := earlier_run.find(job):
        started = initial_weights.from_run(job, earlier, dataset)
        return Model(
            started.module,
            earlier.builder,
            started.arguments,
            earlier.freeze,
            notes=started.notes,
            anew=started.anew,
        )
    spec: Any = getattr(job, "model", None)
    if isinstance(spec, CustomModel):
        module, arguments = user_network.made(job, spec, dataset)
        return Model(module, "own", arguments, spec.freeze, user_code.at(job.folder))
    if isinstance(job, ImageJob):
        return _image_network(job, dataset)
    if isinstance(job, TextJob):
        return _text_network(job, dataset)
    if isinstance(job, SeriesJob):
        return _series_network(job, dataset)
    if isinstance(job, TableJob):
        return _table_network(job, dataset)
    raise AssertionError(f"no network for {job.task}")


def _image_network(job: ImageJob, dataset: Dataset) -> Model:
    spec, size, channels = job.model, dataset.preprocessing["image_size"], dataset.preprocessing["channels"]
    classes = dataset.heads[""].outputs
    arguments: dict[str, Any]
    assert not isinstance(spec, CustomModel | EarlierRun)
    if isinstance(spec, ImagePretrained):
        found = pretrained.find(job, spec.name)
        network = hf_vision.from_folder(job, found, classes, channels, size, spec.dropout)
        arguments = {
            "config": found.config.to_dict(),
            "classes": classes,
            "width": network.classifier.in_features,
            "pooling": network.pooling,
            "dropout": spec.dropout,
        }
        return Model(network, "vision", arguments, spec.freeze)
    arguments = {
        "name": spec.name,
        "channels": channels,
        "classes": classes,
        "image_size": size,
        "dropout": spec.dropout,
    }
    started = timm_folder.find(job)
    if isinstance(spec, ImageTimm):
        made = Model(timm_vision.from_spec(job, spec, arguments), "timm", arguments, spec.freeze)
        if started:
            made.anew = timm_vision.fill(made.module, started)
            made.notes.append(_starts(started, made))
        return made
    assert isinstance(spec, ImageNetwork)
    # The large stem is that of the pretrained weights, also for small images.
    arguments |= {"width": spec.width, "stem": "large" if started else spec.stem}
    made = Model(cnn.build(**arguments), "images", arguments, spec.freeze)
    if started:
        made.anew = timm_resnet.fill(made.module, started)
        made.notes.append(_starts(started, made))
    return made


def _starts(started: timm_folder.TimmFolder, made: Model) -> str:
    return f"starts from {started.origin}; initialized anew: {listed(sorted(made.anew), 6)}"


def _text_network(job: TextJob, dataset: Dataset) -> Model:
    spec = job.model
    outputs = {name: head.outputs for name, head in dataset.heads.items()}
    if isinstance(spec, TextPretrained):
        return _pretrained_text_network(spec, pretrained.find(job, spec.name), outputs, dataset)
    assert isinstance(spec, TextEncoder)
    config = families.bert(
        vocabulary=dataset.preprocessing["vocabulary"],
        pad=dataset.preprocessing["tokenizer"]["pad"],
        longest=dataset.preprocessing["max_length"],
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        dropout=spec.dropout,
    )
    arguments: dict[str, Any] = {"config": config, "outputs": outputs, "pooling": spec.pooling, "dropout": spec.dropout}
    return Model(text_encoder.build(**arguments), "texts", arguments, spec.freeze)


def _pretrained_text_network(
    spec: TextPretrained, found: pretrained.Pretrained, outputs: dict[str, int], dataset: Dataset
) -> Model:
    pooling = families.pooling(found.config) if spec.pooling == "auto" else spec.pooling
    dropout = families.dropout(found.config) if spec.dropout is None else spec.dropout
    network = text_encoder.TextNetwork(found.network(), outputs, pooling, dropout)
    types = bool(dataset.preprocessing.get("token_types"))
    text_encoder.probe(network, found, dataset.preprocessing["max_length"], types=types)
    arguments = {"config": found.config.to_dict(), "outputs": outputs, "pooling": pooling, "dropout": dropout}
    return Model(network, "texts", arguments, spec.freeze)


def _series_network(job: SeriesJob, dataset: Dataset) -> Model:
    spec, length = job.model, dataset.preprocessing["length"]
    assert isinstance(spec, CnnLstmSpec)
    if spec.pool ** len(spec.cnn_channels) > length:
        given = (
            f"is {spec.pool}: {len(spec.cnn_channels)} times pooled, which leaves nothing of a window of {length} rows"
        )
        raise SpecError(
            [job.problem(("model", "pool"), given, "a row or more", "a smaller pool or fewer convolutions")]
        )
    arguments: dict[str, Any] = {
        "channels": dataset.preprocessing["channels"],
        "outputs": dataset.heads[""].outputs,
        "cnn_channels": list(spec.cnn_channels),
        "kernel": spec.kernel,
        "pool": spec.pool,
        "lstm_hidden": spec.lstm_hidden,
        "lstm_layers": spec.lstm_layers,
        "bidirectional": spec.bidirectional,
        "dropout": spec.dropout,
    }
    return Model(cnn_lstm.build(**arguments), "series", arguments, spec.freeze)


def _table_network(job: TableJob, dataset: Dataset) -> Model:
    spec, columns = job.model, features.from_json(dataset.preprocessing)
    assert isinstance(spec, MlpSpec)
    arguments: dict[str, Any] = {
        "numbers": columns.width,
        "categories": columns.sizes,
        "outputs": dataset.heads[""].outputs,
        "hidden": list(spec.hidden),
        "embedding": spec.embedding,
        "dropout": spec.dropout,
    }
    return Model(mlp.build(**arguments), "tables", arguments, spec.freeze)
