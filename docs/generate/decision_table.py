"""The decision table: what is chosen on every recorded machine, as a page for docs/.

python -m docs.generate.decision_table JOB MACHINES > docs/decisions.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from runtime.hardware import facts, gpu_selection
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job_spec import load as job_spec
from runtime.plan import plan as plans
from runtime.plan.plan import Decision, Plan, written
from runtime.system.units import format_bytes

SHOWN = {
    "precision": "precision",
    "compile": "compile",
    "attention": "attention",
    "channels_last": "channels last",
    "loader_workers": "workers",
    "cpu_threads": "threads",
}
"""The decisions that differ between machines, and their columns. One that is not an optimization yet has none."""

COMMAND = "python -m docs.generate.decision_table jobs/digits.yaml tests/machines > docs/decisions.md"
_HEAD = f"""# What is decided on which machine

Made by `{COMMAND}`; a test compares. The
job is `%s`, before model and data are known; the machines are recorded in `tests/machines`.
`drivetrain plan JOB --hardware FILE` shows every decision for one of them.
"""


def page(job: Job, source: Path, machines: Sequence[Path]) -> str:
    """The page: one table over all machines, and below it every reason.

    Args:
        job: the job that is planned for.
        source: where it stands, for the head of the page.
        machines: recorded facts.
    """
    plans_made = {path.stem: _made(job, facts.load(path)) for path in sorted(machines, key=_age)}
    first = next(iter(plans_made.values()))[1]
    names = [name for name in SHOWN if any(row.name == name for row in first.decisions)]
    head = ["machine", "GPU or CPU", "image", "profile", *(SHOWN[name] for name in names)]
    rows = [
        [stem, _chip(machine), str(made.image), made.profile, *(written(made.value(n)) for n in names)]
        for stem, (machine, made) in plans_made.items()
    ]
    lines = [_HEAD % source.as_posix(), *_table([head, *rows]), "", "## Why", ""]
    for stem, (_, made) in plans_made.items():
        lines += [f"**{stem}**", "", *_reasons(made, names), ""]
    return "\n".join(lines).rstrip() + "\n"


def _age(path: Path) -> tuple[tuple[int, int], str]:
    """The order of the rows: CPUs first, then GPUs by capability."""
    gpu = facts.load(path).gpu
    return (gpu.capability if gpu else (0, 0)), path.stem


def _made(job: Job, machine: Hardware) -> tuple[Hardware, Plan]:
    machine = gpu_selection.used(machine, job.limits.gpus)
    return machine, plans.resolve(job, machine)


def _chip(machine: Hardware) -> str:
    gpu = machine.gpu
    if gpu is None:
        return f"{machine.cpu.model}, {machine.cpu.budget} CPUs"
    return f"{gpu.name}, {gpu.capability[0]}.{gpu.capability[1]}, {format_bytes(gpu.memory)}, driver {gpu.driver}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield "|" + " --- |" * len(row)


def _reasons(made: Plan, names: Sequence[str]) -> Iterator[str]:
    yield f"- image `{made.image}`: {made.image_reason}"
    rows: dict[str, Decision] = {row.name: row for row in made.decisions}
    for name in names:
        yield f"- {SHOWN[name]} `{written(rows[name].value)}`: {rows[name].reason}"


def main() -> int:
    """Print the page."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("job", type=Path)
    arguments.add_argument("machines", type=Path)
    given = arguments.parse_args()
    print(page(job_spec.load(given.job), given.job, list(given.machines.glob("*.json"))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
