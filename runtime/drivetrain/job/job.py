"""The job: the validated, frozen request of the user. It has one class per task, and needs neither torch nor a network."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from drivetrain.errors import Problem, SpecError
from drivetrain.job.data import Data
from drivetrain.job.document import Document
from drivetrain.job.formatting import Path as KeyPath
from drivetrain.job.formatting import dot_key
from drivetrain.job.hub_address import is_on_hub, parse
from drivetrain.job.limits import Limits
from drivetrain.job.sweep import Parameter, Sweep
from drivetrain.job.track import Track
from drivetrain.job.train import Plateau, Train
from drivetrain.job.values import Count, Duration, Interval, Name, Spec, StoreAddress, VariableName
from drivetrain.storage.remote_address import is_remote

Setting = bool | int | float | str
LABEL_METRICS = ("loss", "accuracy", "f1", "micro_f1", "map")
"""Metrics of independent labels: accuracy is the share of samples with all labels right, f1 the mean over the labels."""
CLASS_METRICS = ("loss", "accuracy", "f1", "balanced_accuracy", "log_loss", "brier", "ece")
"""Metrics of exclusive classes."""
KAPPA = "kappa"
"""Cohen's kappa with quadratic weights, for two classes or for classes named by whole numbers, such as grades."""
MAPE = "mape"
"""Mean absolute error as a share of the true number; recorded only if no true number is 0."""
NUMBER_METRICS = ("loss", "mae", "rmse", "r2", MAPE)
"""Metrics of numbers."""
RANKING_METRICS = ("auc", "average_precision")
"""Metrics of two exclusive classes; only the data tells that there are two."""
SCALED_RMSE = "scaled_rmse"
"""RMSE of several columns of numbers, each divided by its standard deviation, so that no unit dominates."""
FOLDERS = ("transformers", "run")
"""Values of `model.source` whose name can be a folder."""


class Checkpoint(Spec):
    """When to save checkpoints, and which to keep."""

    every: Interval = Field("5m", description="a duration, `200 steps`, or `epoch`")
    keep: Count = Field(2, description="number of newest checkpoints to keep, in addition to the best")
    best: str | None = Field(None, description="metric of the best checkpoint, which is kept; by task if absent")
    copy_to: StoreAddress | None = Field(
        None,
        description="a folder in an object store, s3://BUCKET/PATH or gs://BUCKET/PATH, to which the run is copied, so that "
        "the same command resumes it on another machine",
    )


class Monitoring(Spec):
    """How often the machine is monitored during the run: memory, CPU, GPUs, speed."""

    every: Duration = Field("1s", description="time between two readings: 1s, 0.2s, 1m")


class Job(Spec):
    """Keys that all tasks share."""

    METRICS: ClassVar[tuple[str, ...]] = ("loss",)
    BEST: ClassVar[str] = "loss"
    LOSSES: ClassVar[tuple[str, ...]] = ()
    PREDICTS_NUMBERS: ClassVar[bool] = False

    name: Name = Field(description="name of the run folders: letters, digits, dots, dashes")
    task: str
    data: Data = Field(description="the training and validation data")
    train: Train = Field(Train(), description="training settings")
    optimize: dict[str, Setting] = Field({}, description="optimizations by name; absent or auto: the runtime decides")
    limits: Limits = Field(Limits(), description="resource limits of the container")
    checkpoint: Checkpoint = Field(Checkpoint(), description="when to save checkpoints and which to keep")
    monitor: Monitoring = Field(Monitoring(), description="how often memory, CPU and GPU are measured")

    baselines: Literal["auto", "full", "off"] = Field(
        "auto",
        description="simple models fitted to the same data after the training. auto: in a tenth of the training time, 15 to "
        "60 s; full: to all samples; off: none",
    )
    track: Track | None = Field(None, description="a tracking server that gets a copy of the run's metrics and report")
    environment: tuple[VariableName, ...] = Field(
        (),
        strict=False,
        description="names of environment variables that the run gets from the caller; their values are never stored",
    )
    sweep: Sweep | None = Field(
        None, description="the keys that `drivetrain sweep` varies; `train` ignores it and prints a note"
    )

    _document: Document = PrivateAttr(default_factory=lambda: Document("job"))
    _folder: Path = PrivateAttr(default_factory=Path)
    _pretrained_commit: str = PrivateAttr("")
    _hub_folders: dict[str, Path] = PrivateAttr(default_factory=dict)
    _copies: dict[str, Path] = PrivateAttr(default_factory=dict)
    _notes: tuple[str, ...] = PrivateAttr(())
    _parameters: tuple[Parameter, ...] = PrivateAttr(())

    @property
    def document(self) -> Document:
        """Document with the position of every key."""
        return self._document

    @property
    def folder(self) -> Path:
        """Folder from which relative paths start."""
        return self._folder

    @property
    def pretrained_commit(self) -> str:
        """Commit of the pretrained network on the hub; empty until it is known, and without a network from the hub."""
        return self._pretrained_commit

    def fix_commit(self, commit: str) -> None:
        """Set the commit of the pretrained network."""
        self._pretrained_commit = commit

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about the data, made while the spec was loaded."""
        return self._notes

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Checked keys that a sweep varies; empty without `sweep:`."""
        return self._parameters

    def heads(self) -> tuple[str, ...]:
        """Return the names of the outputs; one empty name for a single output."""
        return ("",)

    def losses(self) -> tuple[str, ...]:
        """Return the names of the losses that fit the task; empty if every loss fits."""
        return self.LOSSES

    def scores(self) -> tuple[str, ...]:
        """Return the names of the metrics of each output."""
        return (*self.METRICS, SCALED_RMSE) if len(self.number_columns()) > 1 else self.METRICS

    def number_columns(self) -> tuple[str, ...]:
        """Return the columns of numbers to predict, as far as the spec names them; empty for other tasks."""
        return ()

    def metrics(self) -> list[str]:
        """Return every metric of an evaluation that the job can use for decisions."""
        names = ["validation/loss"]
        # Only the data tells whether there are two classes, which are ranked, or grades, which have kappa.
        data_dependent = (*RANKING_METRICS, KAPPA) if "balanced_accuracy" in self.scores() else ()
        for head in self.heads():
            prefix = f"validation/{head}/" if head else "validation/"
            names += [prefix + metric for metric in (*self.scores(), *data_dependent) if prefix + metric not in names]
        columns = self.number_columns()
        if len(columns) > 1:
            scores = [metric for metric in self.METRICS if metric != "loss"]
            names += [f"validation/{column}/{metric}" for column in columns for metric in scores]
        return names

    def watched_metrics(self) -> dict[tuple[str, ...], str | None]:
        """Return the metric at each key that names one for a decision; None where the key is absent."""
        stopping, schedule = self.train.early_stopping, self.train.schedule
        return {
            ("checkpoint", "best"): self.checkpoint.best,
            ("train", "schedule", "metric"): schedule.metric if isinstance(schedule, Plateau) else None,
            ("train", "early_stopping", "metric"): stopping.metric if stopping else None,
        }

    def best(self) -> str:
        """Return the metric that selects the best checkpoint."""
        if self.checkpoint.best:
            return self.checkpoint.best
        head, metric = self.heads()[0], SCALED_RMSE if len(self.number_columns()) > 1 else self.BEST
        return f"validation/{head}/{metric}" if head else f"validation/{metric}"

    def resolve(self, path: str) -> Path:
        """Resolve a path of the spec relative to the job's folder, or to the working folder if it only exists there.

        An address on the Hugging Face hub, in a store or on the web resolves to its path in the cache if it was fetched.
        """
        local_copy = self._find_copy(path)
        if local_copy is not None:
            return local_copy
        if is_on_hub(path):
            address = parse(path)
            folder = self._hub_folders.get(address.root) if address else None
            return folder / address.path if folder and address else Path(path)
        # os.path returns a result in cases where Path raises: for an unknown ~user, or a name that is too long.
        expanded = Path(os.path.expanduser(path))
        if expanded.is_absolute():
            return expanded
        in_folder = self._folder / expanded
        return in_folder if os.path.exists(in_folder) or not os.path.exists(expanded) else expanded

    def _find_copy(self, path: str) -> Path | None:
        """Find the local copy of an address in a store, or of a path below it; None if there is none."""
        for address, local_copy in self._copies.items():
            if path == address or path.startswith(f"{address}/"):
                return local_copy / path.removeprefix(address).lstrip("/")
        return None

    def data_paths(self) -> list[tuple[tuple[str, ...], str]]:
        """Return every path in the spec, with its key."""
        paths: list[tuple[tuple[str, ...], str]] = [(("data", "train"), self.data.train)]
        if isinstance(self.data.validation, str):
            paths.append((("data", "validation"), self.data.validation))
        if self.data.test is not None:
            paths.append((("data", "test"), self.data.test))
        return paths

    def data_path(self, option: str) -> str | None:
        """Return the path at `data.OPTION`; None if it is absent or not a path."""
        return dict(self.data_paths()).get(("data", option))

    def list_columns(self, option: str) -> tuple[str, ...]:
        """Return the columns that `data.OPTION` names; empty if it is absent."""
        value = getattr(self.data, option, None) or ()
        return (value,) if isinstance(value, str) else tuple(value)

    def csv_settings(self) -> dict[str, str]:
        """Return the settings of CSV files that are not auto; empty for data without CSV files."""
        csv = getattr(self.data, "csv", None)
        return csv.list_settings() if csv else {}

    def list_unfetched(self) -> list[tuple[tuple[str, ...], str]]:
        """List the keys and addresses of `data_paths`, on the Hugging Face hub or in a store, that are not in the cache."""
        return [(key, text) for key, text in self.data_paths() if not self._is_local(text)]

    def _is_local(self, text: str) -> bool:
        if is_remote(text):
            return self._find_copy(text) is not None
        if not is_on_hub(text):
            return True
        address = parse(text)
        return address is not None and address.root in self._hub_folders

    def model_paths(self) -> list[tuple[tuple[str, ...], str]]:
        """Return every path in `model:` except user code, with its key; the name of a pretrained network can be a path."""
        model = getattr(self, "model", None)
        candidates = [("name", getattr(model, "name", None))] if getattr(model, "source", None) in FOLDERS else []
        candidates += [(key, getattr(model, key, None)) for key in ("weights", "pretrained")]
        return [(self.model_key(key), text) for key, text in candidates if isinstance(text, str) and text]

    def model_key(self, key: str) -> tuple[str, ...]:
        """Return the path of a key of `model:`; `from` where the spec has the short form of a name."""
        has_short_form = key == "name" and self.document.has(("model", "from"))
        return ("model", "from" if has_short_form else key)

    def check_environment(self, environ: Mapping[str, str]) -> None:
        """Check that every environment variable that the job names is set.

        Args:
            environ: variables of the process that trains or starts the container.

        Raises:
            SpecError: if variables are missing; names all of them.
        """
        missing = [name for name in self.environment if not environ.get(name)]
        if missing:
            raise self.spec_error(
                ("environment",),
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set here",
                "names of variables that are set where the command is called",
                f"export {missing[0]}=..., or remove the name from the job",
            )

    def problems(self) -> Iterator[Problem]:
        """Yield problems of this task's values that are valid alone, but not together."""
        yield from ()

    def refuse_idle_keys(self, keys: Sequence[str], possible: str) -> Iterator[Problem]:
        """Yield a problem for each of these keys of `model:` that is set without an effect on the network of that name."""
        model: Any = getattr(self, "model", None)
        for key in keys:
            # The stored spec of a run contains every key, so a key with its default counts as not written.
            if getattr(model, key) != type(model).model_fields[key].default:
                description = f"has no effect on model.name: {model.name}"
                yield self.problem(("model", key), description, possible, f"remove {key}")

    def locate_key(self, path: KeyPath) -> str:
        """Return `file:line:column: key`, the beginning of a message about the value at a path."""
        return f"{self.document.place(path)}: {dot_key(path)}"

    def problem(self, path: KeyPath, description: str, possible: str, action: str) -> Problem:
        """Return a problem of the value at a path of the spec."""
        return Problem(self.document.place(path), dot_key(path), description, possible, action)

    def spec_error(self, path: KeyPath, description: str, possible: str, action: str) -> SpecError:
        """Return the error about the value at a path of the spec, as its only problem."""
        return SpecError(self.problem(path, description, possible, action))

    def dump(self) -> dict[str, object]:
        """Return the spec with all defaults, as plain values."""
        return self.model_dump(mode="json")


def lower_is_better(metric: str) -> bool:
    """Return whether a smaller value of the metric is better."""
    name = metric.rsplit("/", 1)[-1]
    return name in ("loss", "mse", "mae", "rmse", SCALED_RMSE, MAPE, "error", "brier", "ece") or name.endswith(
        ("-loss", "_loss", "-error", "_error")
    )
