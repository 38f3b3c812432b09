"""Checks the optimizer, scheduler, metrics and callbacks that a Python program passes to its training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from drivetrain.data.custom.map_dataset import describe
from drivetrain.data.custom.user_errors import blame_user_code, describe_error
from drivetrain.errors import Problem, SpecError
from drivetrain.job import lower_is_better
from drivetrain.job.embedded import EmbeddedJob
from drivetrain.models import dry_run
from drivetrain.training.user_parts import (
    Callbacks,
    UserMetrics,
    UserOptimizer,
    UserParts,
    UserSchedule,
    find_unstorable_state,
    read_group_settings,
)

BUILT_IN_METRICS = ("loss", "accuracy", "f1", "mae", "rmse", "r2")
POSSIBLE_OPTIMIZERS = (
    'a description such as {"name": "adamw", "lr": 0.001}, an optimizer for the model\'s parameters, or a function of its '
    "parameters such as lambda parameters: torch.optim.AdamW(parameters, lr=0.001)"
)
POSSIBLE_SCHEDULES = (
    'a description such as {"name": "cosine"}, a scheduler of torch.optim.lr_scheduler for the optimizer, or a function of '
    "the optimizer such as lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"
)
Refusal = Callable[[str, str, str, str], SpecError]
"""Function that makes an error from the argument, the problem, the possible values, and an action."""


def make_refusal(call_site: str) -> Refusal:
    """Make a function that makes errors pointing to `call_site` (file, line and column of the call)."""

    def refuse(key: str, description: str, possible: str, action: str) -> SpecError:
        return SpecError(Problem(call_site, key, description, possible, action))

    return refuse


def is_plain(value: object) -> bool:
    """Return whether an argument is a plain value that a YAML file can contain, and not an object."""
    return value is None or isinstance(value, bool | int | float | str | Mapping)


def collect_parts(
    model: nn.Module,
    optimizer: object,
    schedule: object,
    every: str | None,
    metrics: Mapping[str, object] | None,
    callbacks: Callbacks,
    refuse: Refusal,
) -> tuple[UserParts, dict[str, object], dict[str, object]]:
    """Check the objects of a call, and describe them for its spec.

    Args:
        every: interval of a scheduler object's steps: `step` or `epoch`.

    Returns:
        The objects, the keys of `train:` for optimizer and schedule, and the metrics by name for `own_metrics`.

    Raises:
        SpecError: if one of them cannot be used.
    """
    spec: dict[str, object] = {}
    checked_optimizer = None if is_plain(optimizer) else user_optimizer(optimizer, model, refuse)
    if checked_optimizer:
        spec["optimizer"] = optimizer_spec(checked_optimizer.optimizer)
        # The default, one-cycle, would overwrite the rates of the program's optimizer.
        spec["schedule"] = "constant"
    elif optimizer is not None:
        spec["optimizer"] = optimizer
    checked_schedule = None if is_plain(schedule) else _check_schedule(schedule, checked_optimizer, every, refuse)
    if checked_schedule:
        spec["schedule"] = {"name": "own", "function": _describe_type(schedule), "every": checked_schedule.every}
    elif schedule is not None:
        spec["schedule"] = schedule
    if every is not None and not checked_schedule:
        raise refuse("schedule_every", f"is {every}", "with a scheduler of torch as schedule=", "remove it")
    checked_metrics = dict(_check_metrics(metrics or {}, refuse))
    for name, callback in vars(callbacks).items():
        if callback is not None and not callable(callback):
            raise refuse(name, f"is {describe(callback)}", "a function of one argument", "pass a function")
    scores: dict[str, object] = {name: {"function": type(metric).__name__} for name, metric in checked_metrics.items()}
    user_parts = UserParts(checked_optimizer, checked_schedule, UserMetrics(checked_metrics), callbacks)
    return user_parts, spec, scores


def check_module(model: object, refuse: Refusal) -> None:
    """Refuse a model that is not a network; raises SpecError."""
    if not isinstance(model, nn.Module):
        raise refuse("", f"model is {type(model).__name__}", "a torch.nn.Module", "pass an instance of your network")


def user_optimizer(argument: object, model: nn.Module, refuse: Refusal, *, stored: bool = True) -> UserOptimizer:
    """Return the checked optimizer of the program, for the parameters of its network.

    Args:
        argument: optimizer, or function of the list of trainable parameters.
        refuse: function that makes the error of an argument.
        stored: whether checkpoints store its state; if so, an optimizer with a state that they cannot store is refused.

    Raises:
        SpecError: if the optimizer cannot be used.
    """
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise refuse(
            "optimizer",
            f"is an object, and {lazy[0]} of the model has no shape yet",
            "an optimizer for parameters that exist",
            "pass one batch through the model first, then build the optimizer",
        )
    optimizer = _build_optimizer(argument, model, refuse)
    _check_parameters(optimizer, model, refuse)
    _check_closure(optimizer, refuse)
    if stored:
        dry_run.check_dense_gradients(model, "the model", partial(refuse, ""))
    # The check makes a step with a copy to see its state, so the user's code may raise here.
    call = f"is {_describe_type(optimizer)}, whose step() raised"
    checked = UserOptimizer(optimizer, model)
    with blame_user_code(partial(refuse, "optimizer"), call, POSSIBLE_OPTIMIZERS):
        obstacle = find_unstorable_state(checked)
    if obstacle and stored:
        raise refuse(
            "optimizer",
            f"is {_describe_type(optimizer)}, and {obstacle}, which a checkpoint cannot store",
            "an optimizer whose state is tensors and numbers",
            'choose another one, such as optimizer={"name": "adamw"}; or use `drivetrain.prepare`, which writes no checkpoint',
        )
    return checked


def _build_optimizer(argument: object, model: nn.Module, refuse: Refusal) -> Optimizer:
    """Return the optimizer of the call, or call the function that makes it."""
    if isinstance(argument, Optimizer):
        return argument
    if not callable(argument):
        raise refuse(
            "optimizer",
            f"is {describe(argument)}",
            POSSIBLE_OPTIMIZERS,
            "choose one of these; for several optimizers, one block of drivetrain.prepare for each",
        )
    with blame_user_code(partial(refuse, "optimizer"), "raised", POSSIBLE_OPTIMIZERS):
        optimizer = argument([parameter for parameter in model.parameters() if parameter.requires_grad])
    if not isinstance(optimizer, Optimizer):
        raise refuse("optimizer", f"returned {describe(optimizer)}", POSSIBLE_OPTIMIZERS, "return an optimizer")
    return optimizer


def _check_closure(optimizer: Optimizer, refuse: Refusal) -> None:
    """Refuse an optimizer whose step needs a closure."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure and closure.default is inspect.Parameter.empty:
        raise refuse(
            "optimizer",
            f"is {_describe_type(optimizer)}, whose step() needs a closure",
            "an optimizer whose step() needs no closure: each batch is computed once per step",
            "choose another one, or write your own loop, without drivetrain.train and drivetrain.prepare",
        )


def _check_parameters(optimizer: Optimizer, model: nn.Module, refuse: Refusal) -> None:
    """Refuse an optimizer for parameters that are not in the model: the model would not be trained."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in names]
    if foreign:
        raise refuse(
            "optimizer",
            f"has {len(foreign)} parameters that are not in the model, the first of shape {tuple(foreign[0].shape)}",
            "an optimizer for parameters of this model",
            "build it from model.parameters() after all steps that replace them: loading, copying, another dtype; "
            "put parameters of the loss into the model",
        )


def list_unoptimized(optimizer: Optimizer, model: nn.Module) -> list[str]:
    """List the names of trainable parameters that the optimizer does not have."""
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in optimized]


def optimizer_spec(optimizer: Optimizer) -> dict[str, object]:
    """Describe an optimizer object for the stored spec of a run, with the settings of its first parameter group."""
    # torch's schedulers add entries such as `initial_lr`, which are not settings of the optimizer.
    group = {key: value for key, value in read_group_settings(optimizer)[0].items() if not key.startswith("initial_")}
    active = {key: value for key, value in sorted(group.items()) if value not in (None, False, 0)}
    settings = [f"{key} {value}" for key, value in active.items() if key not in ("lr", "weight_decay", "fused")]
    return {
        "name": "own",
        "function": type(optimizer).__name__,
        "lr": float(optimizer.param_groups[0]["lr"]),
        "groups": len(optimizer.param_groups),
        "settings": ", ".join(settings),
        "fused": all(bool(group.get("fused")) for group in optimizer.param_groups),
        "weight_decay": float(group.get("weight_decay") or 0.0),
    }


def _check_schedule(argument: Any, optimizer: UserOptimizer | None, every: str | None, refuse: Refusal) -> UserSchedule:
    """Check the schedule of the program: a torch scheduler, or a function of the optimizer that returns a scheduler.

    Raises:
        SpecError: if the schedule cannot be used.
    """
    if not isinstance(argument, LRScheduler) and not callable(argument):
        raise refuse("schedule", f"is {describe(argument)}", POSSIBLE_SCHEDULES, "choose one of these")
    if optimizer is None:
        raise refuse(
            "schedule",
            f"is {_describe_type(argument)}, and the optimizer is built by the runtime",
            "a scheduler together with your own optimizer",
            "pass optimizer= as an object or a function, too; or describe the schedule",
        )
    if every not in ("step", "epoch"):
        raise refuse(
            "schedule_every",
            "is missing" if every is None else f"is {every!r}",
            '"step" or "epoch", which a scheduler of torch does not know',
            'pass schedule_every="step" if it counts optimizer steps, as OneCycleLR does, else "epoch"',
        )
    if isinstance(argument, LRScheduler) and argument.optimizer is not optimizer.optimizer:
        raise refuse(
            "schedule", "belongs to another optimizer", "a scheduler for optimizer=", "build it from this optimizer"
        )
    schedule, scheduler = UserSchedule(argument, every), argument
    if not isinstance(argument, LRScheduler):
        # Call it with a copy, because building a scheduler changes the rates of its optimizer.
        with blame_user_code(partial(refuse, "schedule"), "raised", POSSIBLE_SCHEDULES):
            scheduler = schedule.build(optimizer.copy())
    if isinstance(scheduler, ReduceLROnPlateau):
        raise refuse(
            "schedule",
            "is ReduceLROnPlateau, which depends on a metric",
            "the description of this schedule, whose state is stored in the checkpoints",
            'write schedule={"name": "plateau", "patience": 5, "factor": 0.1, "metric": "validation/loss"}',
        )
    if not isinstance(scheduler, LRScheduler):
        raise refuse("schedule", f"returned {describe(scheduler)}", POSSIBLE_SCHEDULES, "return a scheduler")
    return schedule


def check_schedule_length(user_parts: UserParts, steps: int, epochs: int, refuse: Refusal) -> None:
    """Refuse a scheduler that raises before the training ends, as OneCycleLR does after its `total_steps`.

    Raises:
        SpecError: if it raises too early; names its steps and the steps of the training.
    """
    schedule, optimizer = user_parts.schedule, user_parts.optimizer
    if schedule is None or optimizer is None:
        return
    counts_steps = schedule.every == "step"
    needed, unit = (steps, "steps") if counts_steps else (epochs, "epochs")
    # The last step or epoch is trained with the rates set after the previous one.
    end = schedule.find_end(optimizer.optimizer, needed - 1)
    if end:
        length, error = end
        action = f"make it for {needed:,}, as in OneCycleLR(optimizer, 0.1, total_steps={needed})"
        if counts_steps and length >= epochs:
            action += f'; or pass schedule_every="epoch" if its {length:,} steps are epochs'
        raise refuse(
            "schedule",
            f"is {_describe_type(schedule.scheduling)}, which ends after {length:,} {unit}, and the training has "
            f"{needed:,}: then it raises {describe_error(error)}",
            f"a scheduler that can make {needed:,} steps",
            f"{action}; or train for fewer {unit}",
        )


def _check_metrics(argument: object, refuse: Refusal) -> Iterable[tuple[str, Any]]:
    """Check the metrics of the program; yield each with its name.

    Raises:
        SpecError: if a metric cannot be used or has a forbidden name.
    """
    if not isinstance(argument, Mapping):
        raise refuse("metrics", f"is {describe(argument)}", "metrics by name", 'write metrics={"auroc": AUROC(...)}')
    for name, metric in argument.items():
        if not isinstance(name, str) or not name or set(name) & set("/ \n"):
            raise refuse("metrics", f"has the name {name!r}", "a word without spaces and slashes", "choose another one")
        if name in BUILT_IN_METRICS:
            raise refuse(
                "metrics", f"has the name {name!r}", "a name that no built-in metric has", "choose another one"
            )
        methods = [getattr(metric, method, None) for method in ("reset", "update", "compute")]
        if isinstance(metric, type) or not all(map(inspect.isroutine, methods)):
            raise refuse(
                "metrics",
                f"{name} is {describe(metric)}",
                "an object with reset(), update(outputs, targets) and compute(), such as a metric of torchmetrics",
                "pass an instance of such a class",
            )
        _check_direction(name, metric, refuse)
        yield name, metric


def _check_direction(name: str, metric: object, refuse: Refusal) -> None:
    """Refuse a metric whose name contradicts its `higher_is_better`, because tables and comparisons use the name."""
    better = getattr(metric, "higher_is_better", None)
    if better is None or lower_is_better(name) is not better:
        return
    raise refuse(
        "metrics",
        f"{name} is better when {'larger' if better else 'smaller'}, and its name says the opposite",
        "names that end in -loss or -error for metrics whose smaller values are better, and only for these",
        f"call it {name}-score" if better else f"call it {name}-error",
    )


def check_metric_directions(metrics: Mapping[str, Any], job: EmbeddedJob, refuse: Refusal) -> None:
    """Check that metrics that choose checkpoints, stop early or lower rates make clear which values are better.

    Without this check the worst epoch could be stored as the best.

    Raises:
        SpecError: if neither the name nor the object of such a metric tells which values are better.
    """
    for path, watched in job.list_watched_metrics():
        name = watched.removeprefix("validation/")
        metric = metrics.get(name)
        is_clear = (
            getattr(metric, "higher_is_better", None) is not None
            or lower_is_better(name)
            or name.endswith(("-score", "_score"))
        )
        if metric is not None and not is_clear:
            raise refuse(
                ".".join(key for key in path if key != "train"),
                f"is {watched}, and neither name nor object of the metric tells which values are better",
                "names that end in -error or -loss if smaller values are better, and in -score if larger ones are; or an "
                "attribute higher_is_better",
                f"call it {name}-error or {name}-score",
            )


def _describe_type(value: object) -> str:
    """Return the class name of an optimizer or scheduler, or the name of a function."""
    return (
        type(value).__name__ if isinstance(value, Optimizer | LRScheduler) else getattr(value, "__name__", "a function")
    )
