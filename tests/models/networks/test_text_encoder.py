"""Networks for texts: padding changes nothing, heads have their own losses, a split batch gives the whole gradient."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from drivetrain.data.dataset import Batch
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.errors import SpecError
from drivetrain.job import dot_key
from drivetrain.models.builders import BUILDERS
from drivetrain.models.networks.bert import Bert
from drivetrain.models.networks.text_encoder import TextNetwork
from drivetrain.training import run
from tests import reports, tiny

PLAIN = "{name: encoder, layers: 2, width: 16, heads: 2, vocabulary: 400, dropout: 0.0}"
HEADS = "{modo: 0.1, causa: {weight: 0.6, class_weights: balanced, label_smoothing: 0.1}, prioridad: 0.3}"


def network(training_run: run.Run) -> TextNetwork:
    assert isinstance(training_run.model, TextNetwork)
    return training_run.model


def first_batch(training_run: run.Run, size: int) -> Batch:
    """The first samples of the training data."""
    ids = np.arange(size)
    inputs = training_run.dataset.train.gather(ids)
    return Batch(ids, inputs, {name: y[:size] for name, y in training_run.dataset.train.targets.items()})


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_padding_changes_nothing(tmp_path: Path, pooling: str) -> None:
    reports.write_reports(tmp_path)
    training_run = tiny.assemble_plain_run(reports.job(tmp_path, model=f"{PLAIN[:-1]}, pooling: {pooling}}}"), tmp_path)
    model = network(training_run).double().eval()
    ids, mask = first_batch(training_run, 6).inputs
    together = model(ids, mask)
    assert set(together) == {"modo", "causa", "prioridad"}
    for row in range(6):
        (alone,) = ids[row][mask[row] == 1].unsqueeze(0).unsqueeze(0)
        for name, outputs in model(alone, torch.ones_like(alone)).items():
            torch.testing.assert_close(outputs[0], together[name][row], rtol=1e-10, atol=1e-12)
    assert mask.sum(dim=1).unique().numel() > 1


def test_the_mean_is_over_the_tokens_of_a_text(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    model = network(tiny.assemble_plain_run(reports.job(tmp_path, model=PLAIN), tmp_path)).eval()
    ids, mask = torch.tensor([[2, 9, 11, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    hidden = model.encoder(input_ids=ids, attention_mask=mask[:, None, None, :].bool()).last_hidden_state[0]
    expected = model.heads[1](hidden[:4].mean(dim=0))
    torch.testing.assert_close(model(ids, mask)["causa"][0], expected)


def test_a_single_head_gives_a_tensor(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    training_run = tiny.assemble_plain_run(reports.job(tmp_path, labels="modo"), tmp_path)
    outputs = training_run.model(*first_batch(training_run, 3).inputs)
    assert isinstance(outputs, torch.Tensor)
    assert outputs.shape == (3, 7)


def test_each_head_has_its_own_weights_and_smoothing(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    training_run = tiny.assemble_plain_run(reports.job(tmp_path, labels=HEADS, model=PLAIN), tmp_path)
    batch = first_batch(training_run, 20)
    outputs = training_run.model(*batch.inputs)
    loss = training_run.objective(outputs, batch.targets, training_run.objective.denominators(batch.targets))
    counts = training_run.dataset.train.targets["causa"].bincount(minlength=8)
    weights = len(training_run.dataset.train) / (8 * counts)
    causa = F.cross_entropy(outputs["causa"], batch.targets["causa"], weights, label_smoothing=0.1)
    expected = (
        0.1 * F.cross_entropy(outputs["modo"], batch.targets["modo"])
        + 0.6 * causa
        + 0.3 * F.cross_entropy(outputs["prioridad"], batch.targets["prioridad"])
    )
    torch.testing.assert_close(loss, expected)


def gradient(training_run: run.Run, batch: Batch, micro_batch: int | None) -> torch.Tensor:
    training_run.step.use_micro_batch(micro_batch)
    training_run.step.compute_gradients(batch)
    flat_gradient = torch.cat([p.grad.flatten() for p in training_run.step.updater.parameters if p.grad is not None])
    training_run.model.zero_grad()
    return flat_gradient


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("size", [16, 13])
def test_a_split_batch_has_the_gradient_of_the_whole(
    tmp_path: Path, dtype: torch.dtype, limit: float, size: int
) -> None:
    """Weighted heads, one with class weights; 13 samples split unevenly."""
    reports.write_reports(tmp_path)
    training_run = tiny.assemble_plain_run(reports.job(tmp_path, labels=HEADS, model=PLAIN), tmp_path)
    training_run.model.to(dtype)
    batch = first_batch(training_run, size)
    full_gradient = gradient(training_run, batch, None)
    for micro_batch in (1, 2, 4, 8):
        split_gradient = gradient(training_run, batch, micro_batch)
        assert float((split_gradient - full_gradient).norm() / full_gradient.norm()) <= limit, micro_batch


def test_first_weights_are_a_function_of_the_seed(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    first_weights, same_seed, other_seed = (
        tiny.assemble_plain_run(reports.job(tmp_path, train_keys=f", seed: {seed}"), tmp_path).model.state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(first_weights[name], same_seed[name]) for name in first_weights)
    assert not torch.equal(first_weights["heads.0.weight"], other_seed["heads.0.weight"])


def test_a_network_is_built_again_from_plain_data(tmp_path: Path) -> None:
    reports.write_reports(tmp_path)
    training_run = tiny.assemble_plain_run(reports.job(tmp_path), tmp_path)
    rebuilt = BUILDERS[training_run.built_model.builder](**json.loads(json.dumps(training_run.built_model.arguments)))
    rebuilt.load_state_dict(training_run.model.state_dict())
    inputs = first_batch(training_run, 4).inputs
    for name, outputs in rebuilt.eval()(*inputs).items():
        assert torch.equal(outputs, training_run.model.eval()(*inputs)[name])


def assemble_frozen(folder: Path, freeze: str) -> run.Run:
    reports.write_reports(folder)
    return tiny.assemble_plain_run(reports.job(folder, model=f"{reports.ENCODER[:-1]}, freeze: {freeze}}}"), folder)


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        ("{embeddings: true}", ("encoder.embeddings.",)),
        ("{layers: 1}", ("encoder.encoder.layer.0.",)),
        ("{embeddings: true, layers: 2}", ("encoder.",)),
        ("{names: ['encoder.*.attention.*', heads.2]}", (".attention.", "heads.2.")),
    ],
)
def test_frozen_parts_stay_as_they_are(tmp_path: Path, freeze: str, frozen: tuple[str, ...]) -> None:
    training_run = assemble_frozen(tmp_path, freeze)
    before = {name: p.clone() for name, p in training_run.model.named_parameters()}
    training_run.train_mode()
    training_run.rates.set(training_run.counters, training_run.best_metric.factor())
    for seed in range(2):
        training_run.step(first_batch(training_run, 32), BatchShare(seed=seed))
    unchanged = {name for name, p in training_run.model.named_parameters() if torch.equal(before[name], p)}
    assert unchanged == {name for name in before if any(part in name for part in frozen)}


def test_frozen_parts_run_in_evaluation_mode(tmp_path: Path) -> None:
    """No dropout in the embeddings and the first layer, which is where BERT has it; the second layer keeps it."""
    training_run = assemble_frozen(tmp_path, "{embeddings: true, layers: 1}")
    training_run.train_mode()
    ids, _ = first_batch(training_run, 4).inputs
    model = network(training_run)
    encoder = model.encoder
    assert isinstance(encoder, Bert)
    outputs: list[list[torch.Tensor]] = []
    for part in (encoder.embeddings, *encoder.encoder["layer"].children()):
        hidden_states: list[torch.Tensor] = []
        part.register_forward_hook(lambda _, inputs, output, seen=hidden_states: seen.append(output))
        outputs.append(hidden_states)
    for _ in range(2):
        encoder(ids)
    assert [torch.equal(*hidden_states) for hidden_states in outputs] == [True, True, False]
    modes = {name: module.training for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)}
    assert len(modes) > 5
    for name, training in modes.items():
        assert training == (not name.startswith(("encoder.embeddings.", "encoder.encoder.layer.0."))), name


def test_frozen_parts_keep_dropout_if_asked(tmp_path: Path) -> None:
    training_run = assemble_frozen(tmp_path, "{embeddings: true, layers: 2, train_mode: true}")
    training_run.train_mode()
    assert all(module.training for module in training_run.model.modules())


@pytest.mark.parametrize(
    ("freeze", "parts"),
    [
        ("{layers: 3}", ("model.freeze.layers: is 3", "the network has 2 layers")),
        ("{names: ['encoder.layer.*']}", ("no layer matches", "encoder.encoder.layer.0")),
        ("{embeddings: true, layers: 2, names: ['heads.*']}", ("freezes every parameter",)),
    ],
)
def test_what_cannot_be_frozen(tmp_path: Path, freeze: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        assemble_frozen(tmp_path, freeze)
    for part in parts:
        assert part in str(caught.value)
    assert dot_key(("model", "freeze")) in str(caught.value)
