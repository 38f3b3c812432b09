"""The study of a sweep: Optuna's journal of its trials, the values to try next, and which trial is ended early.

The journal is a file of JSON lines. The values of a trial are a function of the seed, its number and the finished trials, and
they enter the journal in one line with the trial: a sweep that was killed goes on with the same trials.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue

from drivetrain.errors import CheckpointError, DeviceError
from drivetrain.job import Job, lower_is_better
from drivetrain.job.sweep import Parameter
from drivetrain.system.files import storage_error
from drivetrain.system.installation import INSTALL_SWEEP

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Direction = Literal["minimize", "maximize"]
JOURNAL = "journal.jsonl"
NAME = "sweep"
MIN_FINISHED_TRIALS = 5
"""Finished trials before one is ended early."""
UNPRUNED_SHARE = 0.25
"""Share of the epochs in which no trial is ended: while the learning rate rises, the slowest can be the best."""


def check_installed() -> None:
    """Check that Optuna is installed; raises DeviceError if it is not."""
    if find_spec("optuna") is None:
        raise DeviceError(
            "optuna is not installed here; it chooses a sweep's values", "the extra `sweep`", f"`{INSTALL_SWEEP}`"
        )


class Study:
    """The trials of one sweep; at most one of them is running."""

    def __init__(self, folder: Path, job: Job, metric: str) -> None:
        """Open the journal, or begin it; the caller holds the lock of the folder.

        Raises:
            CheckpointError: if it is damaged.
            StorageError: if it cannot be written.
        """
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        assert job.sweep is not None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.seed, self.parameters = job.sweep.seed, job.parameters
        self.direction: Direction = "minimize" if lower_is_better(metric) else "maximize"
        path = folder / JOURNAL
        pruner = (
            optuna.pruners.MedianPruner(n_startup_trials=MIN_FINISHED_TRIALS, n_warmup_steps=_count_warmup_epochs(job))
            if job.sweep.pruning
            else optuna.pruners.NopPruner()
        )
        try:
            # Optuna would write the next line behind one that a power loss left incomplete.
            if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)
            # We hold the lock of the folder; one of Optuna's that a killed process left would hold us up for 30 s.
            no_lock: Any = _NoLock()
            self.storage = JournalStorage(JournalFileBackend(str(path), lock_obj=no_lock))
            self.study = optuna.create_study(
                storage=self.storage, study_name=NAME, direction=self.direction, pruner=pruner, load_if_exists=True
            )
        except OSError as error:
            raise storage_error(path, error) from None
        except (ValueError, LookupError, AssertionError) as error:
            raise CheckpointError(
                f"{path} is damaged: {error}",
                "the journal as the sweep wrote it",
                "restore it, or begin anew with --new",
            ) from None

    def trials(self) -> list[FrozenTrial]:
        """All trials, by number."""
        return self.study.get_trials(deepcopy=False)

    def finished(self) -> list[FrozenTrial]:
        """The trials that are done, ended early or failed."""
        return [trial for trial in self.trials() if trial.state.is_finished()]

    def running(self) -> FrozenTrial | None:
        """The trial that has not finished."""
        return next((trial for trial in self.trials() if not trial.state.is_finished()), None)

    def begin(self) -> FrozenTrial:
        """Begin the next trial."""
        from optuna.trial import TrialState, create_trial

        values = suggest(self.parameters, self.finished(), self.seed, self.direction)
        trial = create_trial(state=TrialState.RUNNING, params=values, distributions=distributions(self.parameters))
        self.study.add_trial(trial)
        return self.trials()[-1]

    def values(self, trial: FrozenTrial) -> dict[str, JsonValue]:
        """The values of a trial by key, in the order in which they are set."""
        return {
            p.key: next((c for c in p.choices if _encode_choice(c) == trial.params[p.key]), trial.params[p.key])
            for p in self.parameters
        }

    def note(self, number: int, epoch: int, value: float) -> bool:
        """Record the metric after an epoch, from 0 on; returns whether the trial is to be ended."""
        if epoch not in self.trials()[number].intermediate_values:
            self.storage.set_trial_intermediate_value(self._find_trial_id(number), epoch, value)
        return self.study.pruner.prune(self.study, self.trials()[number])

    def end(self, number: int, state: str, value: float | None = None, reason: str = "") -> None:
        """Record the end of a trial: `complete` with its value, `pruned` or `fail`."""
        from optuna.trial import TrialState

        if reason:
            self.storage.set_trial_user_attr(self._find_trial_id(number), "reason", reason)
        self.study.tell(number, value, state=TrialState[state.upper()])

    def setting(self, name: str, value: JsonValue) -> JsonValue:
        """A setting that the whole sweep keeps: the recorded value, after recording this one if there is none."""
        if name not in self.study.user_attrs:
            self.study.set_user_attr(name, value)
        recorded: JsonValue = self.study.user_attrs[name]
        return recorded

    def _find_trial_id(self, number: int) -> int:
        study = self.storage.get_study_id_from_name(NAME)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)


def suggest(
    parameters: Sequence[Parameter], finished: Sequence[FrozenTrial], seed: int, direction: Direction
) -> dict[str, Any]:
    """The values to try next, by Optuna's tree-structured Parzen estimator; a function of its arguments alone."""
    import optuna

    number = len(finished)
    # A generator that went on over all trials would have to be stored with every one of them.
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    sampler = optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4]))
    study = optuna.create_study(direction=direction, sampler=sampler)
    study.add_trials(finished)
    return study.ask(distributions(parameters)).params


def distributions(parameters: Sequence[Parameter]) -> dict[str, BaseDistribution]:
    """The parameters in Optuna's terms."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    by_key: dict[str, BaseDistribution] = {}
    for p in parameters:
        if p.choices:
            by_key[p.key] = CategoricalDistribution([_encode_choice(choice) for choice in p.choices])
        elif p.whole:
            by_key[p.key] = IntDistribution(int(p.low), int(p.high), log=p.log, step=int(p.step or 1))
        else:
            by_key[p.key] = FloatDistribution(p.low, p.high, log=p.log, step=p.step)
    return by_key


def _encode_choice(choice: JsonValue) -> bool | int | float | str | None:
    """A choice as Optuna stores it: lists and mappings as JSON."""
    return json.dumps(choice, ensure_ascii=False) if isinstance(choice, list | dict) else choice


def _count_warmup_epochs(job: Job) -> int:
    ranges = {parameter.key: parameter for parameter in job.parameters}
    longest = ranges.get("train.epochs")
    numbers = [choice for choice in longest.choices if isinstance(choice, int | float)] if longest else []
    epochs = job.train.epochs if longest is None else max(longest.high, *numbers, 1)
    return max(1, int(UNPRUNED_SHARE * epochs))


class _NoLock:
    """In place of a lock of Optuna's."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass
