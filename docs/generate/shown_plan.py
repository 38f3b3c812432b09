"""The plan that a page shows: what `drivetrain plan` prints for a recorded machine, put into its place on the page.

python -m docs.generate.shown_plan docs/plan-and-report.md
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from drivetrain.hardware import facts
from drivetrain.job_spec import load_job as job_spec
from drivetrain.plan import plan as plans
from drivetrain.plan.plan_table import render
from drivetrain.system.console import open_console

JOB, MACHINE = Path("jobs/digits.yaml"), Path("tests/machines/codespace-2core-cgroup2.json")
_BLOCK = re.compile(r"(?<=```\n)plan for digits [^\n]*\n  machine [^\n]*\n  profile .*?(?=```)", re.DOTALL)


def shown(root: Path) -> str:
    """What `drivetrain plan JOB --hardware MACHINE` prints, without spaces at the ends of lines."""
    job, machine = job_spec.load(root / JOB), facts.read_hardware(root / MACHINE)
    file = io.StringIO()
    open_console(file).print(render(plans.resolve(job, machine), job, machine))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def renewed(page: str, root: Path) -> str:
    """The page with the plan as it is by now."""
    plan = shown(root)
    made, count = _BLOCK.subn(lambda _: plan, page)
    assert count == 1, "the page has one block with the plan"
    return made


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8"), Path()), encoding="utf-8")
