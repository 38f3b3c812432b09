"""A batch in parts has the gradient of the whole, through Step itself; where it cannot, the run says so."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Batch, Head
from drivetrain.data.load_data import load
from drivetrain.distributed.batch_sharding import BatchShare
from drivetrain.errors import Stopped
from drivetrain.job.train import CrossEntropy, Focal, Huber
from drivetrain.job_spec import load_job as job_spec
from drivetrain.models import inspection
from drivetrain.models.build import build
from drivetrain.models.forward_pass import ForwardPass
from drivetrain.models.networks import cnn_lstm, mlp, text_encoder
from drivetrain.optimizations import Effect
from drivetrain.plan import plan
from drivetrain.system import torch_settings
from drivetrain.training import batch_inputs, losses
from drivetrain.training.step import Step
from drivetrain.training.updater import Updater
from tests.axes import each_once
from tests.messages import omits, says
from tests.supervisor.tiny_run import train
from tests.task_cases import CASES
from tests.tiny import assemble_run, job, machine

torch.set_num_threads(1)
BERT = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CLASSES = Head("", classes=("a", "b", "c"))
HEADS = {
    "modo": Head("modo", ("a", "b", "c"), weight=0.1),
    "causa": Head("causa", ("p", "q"), weight=0.6),
    "urgent": Head("urgent", ("no", "yes"), weight=0.3),
}
NUMBERS = {"": Head("", columns=("x", "y"), mean=(0.0, 0.0), std=(1.0, 1.0))}
WEIGHTS = {3: torch.tensor([0.2, 1.0, 3.5]), 2: torch.tensor([0.7, 1.9])}


class Plain(nn.Module):
    """Convolutions with GroupNorm, which looks at one sample at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 36, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def _normal(count: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(3).normal(size=(count, *shape)))


def _tokens(count: int) -> tuple[Tensor, Tensor]:
    drawn = np.random.default_rng(4)
    mask = (np.arange(12) < drawn.integers(1, 13, count)[:, None]).astype(np.int64)
    return torch.from_numpy(drawn.integers(0, 50, (count, 12)) * mask), torch.from_numpy(mask)


NETWORKS: dict[str, tuple[Any, Any, Any, Any]] = {
    "conv": (Plain, lambda n: (_normal(n, 1, 8, 8),), {"": CLASSES}, CrossEntropy(name="cross-entropy")),
    "three heads": (
        lambda: text_encoder.build(
            config=BERT, outputs={n: h.outputs for n, h in HEADS.items()}, pooling="mean", dropout=0.0
        ),
        _tokens,
        HEADS,
        CrossEntropy(name="cross-entropy", label_smoothing=0.1),
    ),
    "focal lstm": (
        lambda: cnn_lstm.CnnLstm(channels=3, outputs=3, cnn_channels=(6,), lstm_hidden=7, dropout=0.0),
        lambda n: (_normal(n, 10, 3),),
        {"": CLASSES},
        Focal(name="focal", gamma=2.0, label_smoothing=0.1),
    ),
    "two numbers": (
        lambda: mlp.Mlp(numbers=4, categories=[3], outputs=2, hidden=[9], dropout=0.0),
        lambda n: (_normal(n, 4), torch.arange(n).view(-1, 1) % 3),
        NUMBERS,
        Huber(name="huber", delta=0.5),
    ),
}


class Recorder(torch.optim.SGD):
    """Keeps the gradients that it is asked to apply, and applies nothing."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.seen = torch.cat([p.grad.flatten() for p in parameters])


def batch(inputs: tuple[Tensor, ...], heads: dict[str, Head], dtype: torch.dtype, soft: bool) -> Batch:
    drawn, count = np.random.default_rng(5), len(inputs[0])
    targets: dict[str, Tensor] = {}
    for name, head in heads.items():
        if not head.classes:
            targets[name] = torch.from_numpy(drawn.normal(size=(count, 2))).to(dtype)
        elif soft:
            targets[name] = torch.from_numpy(drawn.dirichlet(np.ones(head.outputs), count)).to(dtype)
        else:
            targets[name] = torch.from_numpy(drawn.integers(0, head.outputs, count))
    return Batch(np.arange(count), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs), targets)


def gradient(
    name: str, dtype: torch.dtype, size: int, micro: int | None, soft: bool, autocast: torch.dtype | None = None
) -> Tensor:
    """The whole gradient of one Step."""
    make, inputs, heads, loss = NETWORKS[name]
    torch.manual_seed(0)
    network = make().to(dtype)
    optimizer = Recorder(network.parameters(), lr=1.0)
    terms = losses.build_terms(loss)
    objective = losses.Objective(
        heads, {n: losses.HeadLoss(terms, WEIGHTS[h.outputs] if h.classes else None) for n, h in heads.items()}
    )
    forward = ForwardPass(network, objective, torch.device("cpu"))
    forward.dtype = autocast
    step = Step(forward, Updater(network, optimizer, None))
    step.use_micro_batch(micro)
    passes: list[int] = []
    network.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    outcome = step(batch(inputs(size), heads, dtype, soft))
    assert outcome.finite
    assert len(passes) == -(-size // (micro or size))
    assert sum(passes) == size
    return optimizer.seen


@pytest.mark.parametrize(
    ("name", "dtype", "size", "soft"),
    each_once([*NETWORKS, *NETWORKS], [torch.float32, torch.float64], [16, 13], [False, True]),
)
def test_micro_batches_have_the_gradient_of_the_batch(name: str, dtype: torch.dtype, size: int, soft: bool) -> None:
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    batch_gradient = gradient(name, dtype, size, None, soft)
    assert batch_gradient.norm() > 1e-3
    for micro in (1, 2, 4, 8):
        parts_gradient = gradient(name, dtype, size, micro, soft)
        assert float((parts_gradient - batch_gradient).norm() / batch_gradient.norm()) <= limit


class Again(nn.Module):
    """A block that is computed again in the backward pass, the older way: its first pass is without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=True))


def test_micro_batches_share_weights_cast_by_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """All gradients are the same as without sharing, also around a recomputed block."""
    monkeypatch.setitem(
        NETWORKS, "again", (Again, lambda n: (_normal(n, 6),), {"": CLASSES}, CrossEntropy(name="cross-entropy"))
    )
    casts: list[int] = []
    extra_casts = int(torch_settings.casts_keep_gradients())
    original_cast = ForwardPass.cast
    monkeypatch.setattr(ForwardPass, "cast", lambda self: casts.append(1) or original_cast(self))
    shared = gradient("again", torch.float32, 16, 4, False, torch.bfloat16)
    casts_when_shared = len(casts)
    monkeypatch.setattr(torch_settings, "casts_keep_gradients", lambda: False)
    unshared = gradient("again", torch.float32, 16, 4, False, torch.bfloat16)
    assert torch.equal(shared, unshared)
    assert (shared != 0).float().mean() > 0.5
    assert casts_when_shared == len(casts) - casts_when_shared + extra_casts, "one around all parts"


def test_with_batchnorm_parts_are_another_training(tmp_path: Path) -> None:
    """Which is why the plan calls the split `training` there, and does it only when asked."""
    runs = [assemble_run(tmp_path, job(optimize=f"micro_batch: {n}"), plain=False) for n in (16, 4)]
    gradients = []
    for run in runs:
        ids = np.arange(16)
        (inputs,) = run.dataset.train.gather(ids)
        recorder = Recorder(run.model.parameters(), lr=1.0)
        run.step.updater = Updater(run.model, recorder, None)
        run.step(Batch(ids, (inputs,), {"": run.dataset.train.targets[""][:16]}))
        gradients.append(recorder.seen)
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) > 1e-2


@pytest.mark.parametrize(("name", "effect"), [("image folders", Effect.TRAINING), ("table numbers", Effect.ROUNDING)])
def test_the_plan_shows_the_effect_of_a_split(name: str, effect: Effect, tmp_path: Path) -> None:
    CASES[name].files(tmp_path)
    (tmp_path / "job.yaml").write_text(f"name: t\n{CASES[name].text}optimize: {{micro_batch: 4}}\n")
    job_with_split = job_spec.load(tmp_path / "job.yaml")
    dataset = load(job_with_split)
    job_plan = plan.resolve(
        job_with_split, machine(), inspection.inspect_workload(dataset, build(job_with_split, dataset).module)
    )
    (row,) = [d for d in job_plan.decisions if d.name == "micro_batch"]
    assert (row.value, row.effect) == (4, effect)


@pytest.mark.parametrize(("name", "warned"), [("image arrays", True), ("table", False)])
def test_splitting_with_batchnorm_gives_a_warning(name: str, warned: bool, tmp_path: Path) -> None:
    CASES[name].files(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"name: tiny\n{CASES[name].text}train: {{epochs: 1, batch_size: 8}}\n"
        "optimize: {micro_batch: 2, cpu_threads: 1, measure: off}\n"
    )
    done = train(path)
    assert done.returncode == 0, done.stderr
    assert (says if warned else omits)(done.stdout, "plan-micro-batch-changes")


def test_a_step_seeds_the_device_it_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.manual_seed` takes the current device, which is the first one in every process."""
    at: list[Any] = []
    seeded: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(at.append(device)))
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    stateless_random.seed_for_device(torch.device("cuda:1"), 7)
    assert (at, seeded) == ([torch.device("cuda:1")], [7])


class UnpoolingNetwork(nn.Module):
    """A network with an operation that has no deterministic kernel, not even on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.BatchNorm2d(1)
        self.last = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        small, where = nn.functional.max_pool2d(self.seen(x), 2, return_indices=True)
        return self.last(nn.functional.max_unpool2d(small, where, 2).flatten(1))  # type: ignore[arg-type]


def build_unpooled_step(strict: bool, messages: list[str]) -> Step:
    torch.manual_seed(0)
    network = UnpoolingNetwork()
    objective = losses.build_objective(CrossEntropy(name="cross-entropy"), {"": CLASSES}, {"": torch.arange(3)}, "none")
    updater = Updater(network, torch.optim.SGD(network.parameters(), 0.1), None)
    step = Step(ForwardPass(network, objective, torch.device("cpu")), updater)
    step.report = lambda kind, text: messages.append(text)
    step.forward.deterministic_only = strict
    return step


def test_a_signal_before_the_step_ends_it() -> None:
    """The context raises where it is entered, and the weights stay as they are."""
    step = build_unpooled_step(False, [])
    weights = [parameter.detach().clone() for parameter in step.forward.network.parameters()]

    @contextlib.contextmanager
    def interrupt() -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    step.interruptible = interrupt
    with pytest.raises(KeyboardInterrupt):
        step(Batch(np.arange(6), (torch.randn(6, 1, 8, 8),), {"": torch.arange(6) % 3}))
    for earlier, now in zip(weights, step.forward.network.parameters(), strict=True):
        assert torch.equal(earlier, now)


def test_an_operation_without_deterministic_kernel_is_named_once_and_training_continues() -> None:
    """With the same weights and statistics as if it had been allowed from the start."""
    messages, batch = list[str](), Batch(np.arange(6), (torch.randn(6, 1, 8, 8),), {"": torch.arange(6) % 3})
    plain_step, strict_step = build_unpooled_step(False, messages), build_unpooled_step(True, messages)
    with torch_settings.use_default_switches():
        for seed in range(3):
            assert plain_step(batch, BatchShare(seed=seed)).read() == strict_step(batch, BatchShare(seed=seed)).read()
        assert torch.get_deterministic_debug_mode() == 0
    assert len(messages) == 1
    assert says(messages[0], "max-unpooling2d-forward-deterministic")
    for one, other in zip(
        plain_step.forward.network.state_dict().values(), strict_step.forward.network.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("is_wrapped_again", [True, False])
def test_an_earlier_problem_outlasts_the_change_to_other_kernels(is_wrapped_again: bool) -> None:
    """A stop that the other processes do not know yet must not give way to the attempt with other kernels."""
    step = build_unpooled_step(True, [])
    step.exchange.wrap_if_changed = lambda network: is_wrapped_again  # type: ignore[method-assign]
    step.lockstep.hold(Stopped("max_time has passed"))
    with torch_settings.use_default_switches(), pytest.raises(Stopped):
        step(Batch(np.arange(6), (torch.randn(6, 1, 8, 8),), {"": torch.arange(6) % 3}))


def test_another_error_of_a_strict_step_is_raised() -> None:
    step = build_unpooled_step(True, [])
    with pytest.raises(RuntimeError, match="running_mean should contain 2"):
        step(Batch(np.arange(6), (torch.randn(6, 2, 8, 8),), {"": torch.arange(6) % 3}))


def test_a_network_that_uses_other_generators_draws_the_same_in_the_same_step(tmp_path: Path) -> None:
    """After a kill such a network continued with other numbers, although the start promises the same bits."""

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(64, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(inputs.flatten(1)) * (1 + np.random.rand() + random.random())
            return result

    torch.manual_seed(0)
    network = Noisy()
    run = assemble_run(tmp_path, job())
    run.step.forward.compute = network
    batch = batch_inputs.preprocess(run, next(iter(run.batches.epoch(0))), 0)

    def compute_losses(numbers: range) -> list[float]:
        return [float(run.step.compute_gradients(batch, BatchShare(seed=number)).total) for number in numbers]

    losses_of = compute_losses(range(4))
    np.random.seed(9)
    random.seed(9)
    assert compute_losses(range(2, 4)) == losses_of[2:]
    assert len(set(losses_of)) == 4
