"""`drivetrain repeat`: trains a job with several seeds, one run after the other, and writes one page about all of them.

Every run has its own folder, named after the job and its seed. The same command skips the runs that are done with this
spec and resumes the one that is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import SpecError
from runtime.job import Job
from runtime.job_spec.spec_source import SpecSource
from runtime.report import repeated
from runtime.supervisor import run_folder, supervisor
from runtime.supervisor.spec_difference import difference
from runtime.system.console import say
from runtime.system.files import make_folder

MOST = 100
"""Largest number of seeds."""


@dataclass(frozen=True)
class RepeatRequest:
    """The options of `drivetrain repeat`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    seeds: int = 3
    plain: bool = False
    new: bool = False
    """Whether unfinished runs are left, and others begun in their place."""


def repeat(request: RepeatRequest) -> int:
    """Train with every seed that is not done; returns 0, or the exit code of the first run that did not finish.

    Raises:
        SpecError: if the number of seeds is out of range.
        DrivetrainError: for every problem of a run that is found before its trainer starts.
    """
    if not 2 <= request.seeds <= MOST:
        raise SpecError(f"--seeds {request.seeds}", f"2 to {MOST}", "--seeds 3")
    job = SpecSource(request.spec, request.assignments).load()
    make_folder(request.runs)
    found: dict[str, Path] = {}
    for number, seed in enumerate(range(job.train.seed, job.train.seed + request.seeds), 1):
        assignments = (*request.assignments, f"train.seed={seed}", f"name={job.name}-seed{seed}")
        one = SpecSource(request.spec, assignments).load()
        place = f"seed {seed} ({number} of {request.seeds})"
        done = _done(request.runs, one)
        if done:
            say(f"{place}: {done} is done")
        else:
            say(f"{place}: trains")
            wanted = supervisor.TrainRequest(
                request.spec, assignments, request.runs, plain=request.plain, new=request.new
            )
            if code := supervisor.train(wanted):
                say(
                    f"{place} did not finish; {number - 1} of {request.seeds} runs are done, and the same command goes on here"
                )
                return code
            done = run_folder.numbered(request.runs, one.name)[-1]
        found[f"seed {seed}"] = done
    folder = request.runs / f"repeat-{job.name}"
    spreads = repeated.write(folder, job.name, found, _notes(job, found))
    for spread in spreads:
        say(f"{spread.metric}: {spread} ({request.seeds} seeds)")
    say(f"repeat: {folder}/repeat.html")
    return 0


def _done(runs: Path, job: Job) -> Path | None:
    """The last run of this spec, if it has finished."""
    last = next(reversed(run_folder.numbered(runs, job.name)), None)
    finished = last is not None and run_folder.status(last) == "done" and (last / "job.yaml").is_file()
    return last if last and finished and not difference(last, job) else None


def _notes(job: Job, found: dict[str, Path]) -> list[str]:
    split = (
        "" if isinstance(job.data.validation, str) else " and, unless the data is a series, other validation samples"
    )
    return [
        f"Each seed draws other initial weights, another order of the samples, augmentation, dropout{split}.",
        "side by side: drivetrain compare " + shlex.join(map(str, found.values())),
    ]
