"""The `train:` section of the spec: optimizer, schedule, loss, stopping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from drivetrain.job.values import Column, Count, Duration, Fraction, Natural, Positive, Spec, accept_name


class Optimizer(Spec):
    """Keys that all optimizers share."""

    builder: ClassVar[str] = ""
    """Function below `drivetrain.training` that builds it."""
    has_fused_kernel: ClassVar[bool] = True
    """Whether torch can update all parameters with one kernel."""
    scales_linearly: ClassVar[bool] = False
    """Whether the best learning rate grows with the batch size instead of with its square root: linear for SGD (Goyal et
    al. 2017, arXiv:1706.02677), square root for Adam (Malladi et al. 2022, arXiv:2205.10287).
    """
    weight_decay: float = Field(1e-4, ge=0, description="decay of weights; norms and biases get none")

    @property
    def kind(self) -> str:
        """Key of measurements of its speed."""
        return str(getattr(self, "name", ""))

    @property
    def moments(self) -> int:
        """Number of values that are stored for each weight."""
        return 2

    def find_contradictions(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield settings that contradict each other: a key, its description, the possible values, and an action."""
        yield from ()


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019)."""

    builder = "optimizer.build_adam"
    name: Literal["adamw", "adam"] = Field(
        "adamw", description="adamw decouples the decay, adam adds it to the gradient"
    )
    lr: Positive = Field(1e-3, description="learning rate at the top of the schedule")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="decay of the two moments", strict=False)
    eps: Positive = Field(1e-8, description="term that prevents a division by zero")
    amsgrad: bool = Field(False, description="keep the largest second moment (Reddi et al. 2018)")

    @property
    def moments(self) -> int:
        """Count the largest second moment, too."""
        return 3 if self.amsgrad else 2


class Sgd(Optimizer):
    """Stochastic gradient descent."""

    builder = "optimizer.build_sgd"
    scales_linearly = True
    name: Literal["sgd"]
    lr: Positive = Field(0.1, description="learning rate at the top of the schedule")
    momentum: Fraction = Field(0.9, description="momentum: share of the previous update that is added to the next")
    nesterov: bool = Field(False, description="look ahead along the momentum")
    dampening: Fraction = Field(0.0, description="damping of the momentum")

    @property
    def moments(self) -> int:
        """Return 1, or 0 without momentum."""
        return int(self.momentum > 0)

    def find_contradictions(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield settings of a momentum that is 0, and Nesterov's momentum with dampening, which torch refuses."""
        if self.nesterov and (self.momentum == 0 or self.dampening > 0):
            possible = "with momentum above 0 and dampening 0 only"
            yield "nesterov", "is true", possible, "change those two, or remove it"
        if self.dampening and not self.momentum:
            yield "dampening", f"is {self.dampening:g}, and momentum is 0", "with momentum above 0", "remove it"


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) for the matrices of hidden layers, and AdamW for all other weights.

    Its updates have the size of AdamW's (Liu et al. 2025, arXiv:2502.16982), so both use the same rate and decay.
    """

    builder = "muon.build"
    has_fused_kernel = False
    name: Literal["muon"]
    lr: Positive = Field(1e-3, description="learning rate at the top of the schedule")
    momentum: Fraction = Field(0.95, description="decay of the moment of a matrix")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="decay of the moments of AdamW", strict=False)
    eps: Positive = Field(1e-8, description="term of AdamW that prevents a division by zero")


class OneCycle(Spec):
    """One cycle (Smith & Topin 2018): the rate rises and then falls to nearly zero, both along a cosine."""

    name: Literal["one-cycle"]
    warmup: Fraction = Field(0.3, description="share of the steps in which the rate rises (warmup)")


class Cosine(Spec):
    """Cosine annealing (Loshchilov & Hutter 2017) after a linear warm-up."""

    name: Literal["cosine"]
    warmup: Fraction = Field(0.0, description="share of the steps in which the rate rises (warmup)")
    floor: Fraction = Field(0.0, description="final rate as a share of lr")


class Linear(Spec):
    """Linear decay to zero after a linear warm-up."""

    name: Literal["linear"]
    warmup: Fraction = Field(0.0, description="share of the steps in which the rate rises (warmup)")


class StepDown(Spec):
    """Multiplies the rate by `factor` every `epochs` epochs."""

    name: Literal["step"]
    epochs: Count = Field(30, description="epochs between two drops")
    factor: Fraction = Field(0.1, description="factor of the rate at each drop")


class Plateau(Spec):
    """Multiplies the rate by `factor` after more than `patience` epochs without improvement of the watched metric."""

    name: Literal["plateau"]
    patience: Natural = Field(5, description="tolerated epochs without improvement; the next such epoch drops the rate")
    factor: Fraction = Field(0.1, description="factor of the rate at each drop")
    metric: str = Field("validation/loss", description="metric to watch")


class Constant(Spec):
    """The same rate throughout."""

    name: Literal["constant"]


class CrossEntropy(Spec):
    """Cross entropy over classes."""

    name: Literal["cross-entropy"]
    label_smoothing: Fraction = Field(0.0, description="share of the target spread over all classes")


class Focal(Spec):
    """Focal loss (Lin et al. 2017): cross entropy times (1 - p)^gamma; binary and multi-class."""

    name: Literal["focal"]
    gamma: float = Field(2.0, ge=0, description="how strongly easy samples are down-weighted")
    alpha: Fraction | None = Field(None, description="weight of class 1 of two classes; class 0 has 1 - alpha")
    label_smoothing: Fraction = Field(0.0, description="share of the target spread over all classes")


class BinaryCrossEntropy(Spec):
    """Sigmoid and binary cross entropy per label, for samples with several labels."""

    name: Literal["bce"]
    label_smoothing: Fraction = Field(0.0, description="share of the target moved towards one half")


class MeanSquaredError(Spec):
    """Mean squared error."""

    name: Literal["mse"]


class Huber(Spec):
    """Huber loss (1964): quadratic near zero, linear beyond delta."""

    name: Literal["huber"]
    delta: Positive = Field(
        1.0, description="error at which the loss turns from quadratic to linear, in units of the scaled target"
    )


class Fp16(Spec):
    """Gradient scaling for fp16 (Micikevicius et al. 2018), used if `optimize.precision` is fp16."""

    initial_scale: Positive = Field(65536.0, description="initial loss scale")
    growth_factor: Annotated[float, Field(ge=1)] = Field(
        2.0, description="factor by which the scale grows after good steps"
    )
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="factor by which the scale shrinks after a skipped step"
    )
    growth_interval: Count = Field(2000, description="good steps in a row before the scale grows")
    min_scale: Positive = Field(
        1.0, description="a scale below this counts as collapsed, as do 20 skipped steps in a row"
    )
    max_scale: Positive = Field(2.0**24, description="largest scale")
    fallback: Literal["none", "fp32"] = Field(
        "none",
        description="fp32: if the scale collapses, go back to the last checkpoint and continue in fp32; none: the run ends",
    )


class EarlyStopping(Spec):
    """Stops when a metric no longer improves."""

    metric: str = Field(description="metric to watch")
    patience: Count = Field(5, description="epochs without improvement before stopping")
    min_delta: float = Field(0.0, ge=0, description="smallest change that counts as an improvement")


BuiltOptimizer = Adam | Sgd | Muon
"""Optimizers that the runtime builds."""
AnyOptimizer = Annotated[Annotated[BuiltOptimizer, Field(discriminator="name")], accept_name("adamw")]
AnySchedule = Annotated[
    Annotated[OneCycle | Cosine | Linear | StepDown | Plateau | Constant, Field(discriminator="name")],
    accept_name("one-cycle"),
]
AnyLoss = Annotated[
    Annotated[CrossEntropy | Focal | BinaryCrossEntropy | MeanSquaredError | Huber, Field(discriminator="name")],
    accept_name(),
]


USUAL_BATCH = 32
"""Default batch size."""


def check_class_weights(value: Any) -> object:
    """Check `train.class_weights`, with one message for all its forms."""
    is_mapping_of_numbers = isinstance(value, dict) and all(
        name and isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < float("inf")
        for name, weight in value.items()
    )
    if value in ("none", "balanced") or (is_mapping_of_numbers and value):
        return value
    raise PydanticKnownError("literal_error", {"expected": "'none', 'balanced', numbers above 0 by class name"})


ClassWeights = Annotated[Literal["none", "balanced"] | dict[Column, Positive], BeforeValidator(check_class_weights)]
CLASS_WEIGHTS_DESCRIPTION = (
    "balanced: rarer classes or labels count more; or numbers by class or label, such as {malignant: 5}; 1 if not named; the "
    "weight of a label applies to samples that have it"
)


class Train(Spec):
    """Training settings."""

    epochs: Count = Field(10, description="passes over the training data")
    steps: Count | None = Field(
        None, description="stop after this many optimizer steps, unless `epochs` ends the run earlier"
    )
    max_time: Duration | None = Field(None, description="stop before this much wall-clock time has passed: 2h")
    within: Duration | None = Field(
        None,
        description="choose the length so that the whole command ends within this time, instead of `epochs` and `steps`: 30m; "
        "at most 100 epochs",
    )
    batch_size: Count | Literal["auto"] = Field(
        USUAL_BATCH,
        description="samples per optimizer step; auto: the smallest size within 5 % of the fastest that fits into memory; the "
        "size affects the result",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of all random numbers")
    deterministic: bool | Literal["auto"] = Field(
        "auto",
        description="true: bit-identical results on the same machine; false: nondeterministic kernels are allowed; auto: true "
        "on a CPU, false on a GPU, where it can be slower",
    )
    optimizer: AnyOptimizer = Field(Adam(), description="the optimizer and its settings", validate_default=False)
    lr_groups: dict[str, Positive] = Field(
        {},
        description="factors of the learning rate by name pattern; the first match counts: {features*: 0.1}",
    )
    schedule: AnySchedule = Field(
        OneCycle(name="one-cycle"), description="learning-rate schedule", validate_default=False
    )
    loss: AnyLoss | None = Field(None, description="loss to minimize; if absent cross entropy or MSE, by task")
    class_weights: ClassWeights = Field("none", description=CLASS_WEIGHTS_DESCRIPTION)
    clip_norm: Positive | None = Field(1.0, description="largest gradient norm; null turns clipping off")
    fp16: Fp16 = Field(Fp16(), description="loss scaling when the precision is fp16")
    early_stopping: EarlyStopping | None = Field(None, description="stop when a metric no longer improves")
    loss_spike: Literal["ignore", "warn", "rollback"] = Field(
        "warn",
        description="reaction to a loss of ten times its recent median; rollback: go back to the last checkpoint and skip "
        "this batch, once per run",
    )
    solve_heads: bool | Literal["auto"] = Field(
        "auto",
        description="true: linear outputs of a frozen network, or linear models, are solved with L-BFGS instead of all epochs, "
        "or of the epochs before `model.unfreeze`; auto: true unless augmentation changes the inputs, the network is "
        "your own or several processes train",
    )
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="decay of an exponential moving average of the weights, which is validated and saved, too",
    )

    @property
    def batch(self) -> int:
        """Samples per batch; the default as long as `auto` is not measured."""
        return USUAL_BATCH if self.batch_size == "auto" else self.batch_size

    def is_deterministic(self, *, on_gpu: bool) -> bool:
        """Return whether only deterministic kernels are allowed."""
        return not on_gpu if self.deterministic == "auto" else self.deterministic
