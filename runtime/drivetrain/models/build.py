"""Builds a job's network from the spec and the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from drivetrain.data import stateless_random
from drivetrain.data.custom import user_code
from drivetrain.data.custom.user_code import Code
from drivetrain.data.dataset import Dataset
from drivetrain.data.tables import features
from drivetrain.job import Job
from drivetrain.job.model import BuiltIn, CustomModel, Freeze, ImageTimm, WithWeights
from drivetrain.job.tables import MlpSpec, TableJob
from drivetrain.job.text import TextEncoder, TextJob, TextPretrained
from drivetrain.models import initial_weights, lr_groups
from drivetrain.models.builders import BUILDERS
from drivetrain.models.freeze import (
    Unfreezing,
    find_unfreezing,
    freeze,
    note_random_frozen,
    note_unreached,
    train_skip_first,
)
from drivetrain.models.networks import tabm, text_encoder, user_network, word_bag
from drivetrain.pretrained import earlier_run, families, hub_name
from drivetrain.pretrained import folder as pretrained
from drivetrain.tasks import modality_of


@dataclass
class BuiltModel:
    """A network as built, and the values to build it again."""

    module: nn.Module
    builder: str
    """A key of `builders.BUILDERS`, `own` or `python`."""
    arguments: dict[str, Any]
    """Arguments of the builder: plain JSON values."""
    freeze: Freeze
    code: Code | None = None
    """The user's Python files that define the network; None for a built-in network."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user about the initial weights of the network."""
    random_names: set[str] = field(default_factory=set)
    """Names of tensors with random values, because the earlier run or the file of weights does not have them."""
    unfreezing: Unfreezing = field(default_factory=Unfreezing)
    """Epochs that unfreeze frozen parameters."""

    def list_trained(self) -> list[str]:
        """List the names of the parameters that are trained in any epoch, in the order of the network."""
        later = self.unfreezing.first_epochs
        return [name for name, p in self.module.named_parameters() if p.requires_grad or name in later]


def build(job: Job, dataset: Dataset) -> BuiltModel:
    """Build the network of a job: initialize its weights from the seed or load them, and freeze parameters.

    Raises:
        SpecError: if the network cannot be loaded, or lacks layers that the job freezes, unfreezes or trains.
    """
    built_model = _build_network(job, dataset)
    spec = getattr(job, "model", None)
    if isinstance(spec, WithWeights | CustomModel) and spec.weights:
        module, arguments = built_model.module, built_model.arguments
        outputs = initial_weights.list_output_tensors(module, built_model.builder, arguments, dataset.heads)
        built_model.random_names, notes = initial_weights.load_file(job, spec.weights, built_model.module, outputs)
        built_model.notes += notes
    freeze(built_model.module, built_model.freeze, job)
    built_model.unfreezing = find_unfreezing(built_model.module, getattr(spec, "unfreeze", ()), job)
    if getattr(spec, "skip", False):
        built_model.unfreezing = train_skip_first(built_model.module, built_model.unfreezing)
    lr_groups.make_groups(job, built_model.module, built_model.list_trained())
    built_model.notes += note_random_frozen(
        built_model.module, built_model.random_names, built_model.unfreezing.first_epochs
    )
    loads_weights = getattr(spec, "weights", None) or hub_name.find_weights_name(job)
    if isinstance(spec, WithWeights | ImageTimm) and not loads_weights and built_model.freeze != Freeze():
        frozen = {name for name, p in built_model.module.named_parameters() if not p.requires_grad}
        never_trained = frozen - built_model.unfreezing.first_epochs.keys()
        when = "never learn" if never_trained else "learn only when they are unfrozen"
        built_model.notes.append(
            f"model.freeze freezes layers with random weights, which {when}; start from an earlier run "
            "(model: {from: runs/NAME-001}) or from a file (model.weights)"
        )
    built_model.notes += note_unreached(built_model.unfreezing, job, len(dataset.train))
    return built_model


def _build_network(job: Job, dataset: Dataset) -> BuiltModel:
    torch.manual_seed(stateless_random.derive_key(job.train.seed, "weights"))
    earlier = earlier_run.find(job)
    if earlier:
        loaded = initial_weights.build_from_run(job, earlier, dataset)
        return BuiltModel(
            loaded.module,
            earlier.builder,
            loaded.arguments,
            earlier.freeze,
            notes=loaded.notes,
            random_names=loaded.random_names,
        )
    spec = getattr(job, "model", None)
    build_network = build_user_network if isinstance(spec, CustomModel) else modality_of(job).build_network
    built_model: BuiltModel = build_network(job, dataset)
    return built_model


def build_user_network(job: Job, dataset: Dataset) -> BuiltModel:
    """Build the network of the user's code."""
    spec: Any = getattr(job, "model", None)
    module, arguments = user_network.build(job, spec, dataset)
    return BuiltModel(module, "own", arguments, spec.freeze, user_code.open_code(job.folder))


def build_model(builder: str, arguments: dict[str, Any], spec: BuiltIn) -> BuiltModel:
    """Build a built-in network with random weights."""
    return BuiltModel(BUILDERS[builder](**arguments), builder, arguments, spec.freeze)


def build_text_network(job: TextJob, dataset: Dataset) -> BuiltModel:
    """Build an encoder or a linear model for texts."""
    spec = job.model
    outputs = {name: head.outputs for name, head in dataset.heads.items()}
    if isinstance(spec, TextPretrained):
        return _build_pretrained_text_network(spec, pretrained.find(job, spec.name), outputs, dataset)
    assert isinstance(spec, TextEncoder)
    arguments: dict[str, Any]
    if spec.name == "linear":
        arguments = {"vocabulary": dataset.preprocessing["vocabulary"], "outputs": outputs, "dropout": spec.dropout}
        arguments |= {"pair_buckets": word_bag.choose_pair_buckets(sum(outputs.values()))}
        return build_model("linear texts", arguments, spec)
    config = families.make_bert_config(
        vocabulary=dataset.preprocessing["vocabulary"],
        pad=dataset.preprocessing["tokenizer"]["pad"],
        longest=dataset.preprocessing["max_length"],
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        dropout=spec.dropout,
    )
    arguments = {"config": config, "outputs": outputs, "pooling": spec.pooling, "dropout": spec.dropout}
    return build_model("texts", arguments, spec)


def _build_pretrained_text_network(
    spec: TextPretrained, source: pretrained.Pretrained, outputs: dict[str, int], dataset: Dataset
) -> BuiltModel:
    default_pooling = dataset.preprocessing.get("pooling", families.choose_pooling(source.config))
    pooling = default_pooling if spec.pooling == "auto" else spec.pooling
    dropout = families.find_dropout(source.config) if spec.dropout is None else spec.dropout
    network = text_encoder.TextNetwork(source.network(), outputs, pooling, dropout)
    has_types = bool(dataset.preprocessing.get("token_types"))
    text_encoder.check_text_length(network, source, dataset.preprocessing["max_length"], types=has_types)
    arguments = {"config": source.config.to_dict(), "outputs": outputs, "pooling": pooling, "dropout": dropout}
    return BuiltModel(network, "texts", arguments, spec.freeze)


def build_table_network(job: TableJob, dataset: Dataset) -> BuiltModel:
    """Build a perceptron, an ensemble of them or a linear model for tables."""
    spec, columns = job.model, features.from_json(dataset.preprocessing)
    assert isinstance(spec, MlpSpec)
    outputs = dataset.heads[""].outputs
    arguments: dict[str, Any] = {"numbers": columns.width, "categories": columns.sizes, "outputs": outputs}
    if spec.name == "linear":
        arguments |= {"edges": columns.edges}
        return build_model("linear tables", arguments, spec)
    arguments |= {"hidden": list(spec.hidden), "embedding": spec.embedding, "dropout": spec.dropout}
    if any(columns.edges):
        arguments |= {"edges": columns.edges, "number_embedding": spec.number_embedding}
    if spec.skip:
        arguments |= {"skip": True}
    if spec.name == "tabm":
        arguments |= {"members": spec.members, "kind": tabm.choose_kind(dataset.heads[""])}
        return build_model("tabm", arguments, spec)
    return build_model("tables", arguments, spec)
