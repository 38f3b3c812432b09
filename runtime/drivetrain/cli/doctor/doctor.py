"""`drivetrain doctor`: problems of this machine; each line is ok, warn or fail, with the command that fixes it.

    Snapshot (gathered once) -> checks (pure) -> findings -> table, exit code by the worst

Exit codes: 0 all is well, 1 something should be fixed, 9 something cannot work.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drivetrain.cli.doctor import disk, docker_engine, environment_variables, gpu, limits
from drivetrain.cli.doctor.finding import EXIT, Check, Finding, Level, find_worst_level
from drivetrain.cli.doctor.snapshot import Snapshot, gather
from drivetrain.system.console import open_console

CHECKS: tuple[Check, ...] = (
    docker_engine.check,
    gpu.check,
    limits.check,
    disk.check,
    environment_variables.check,
    limits.check_port_and_clock,
)
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def list_findings(snapshot: Snapshot) -> list[Finding]:
    """List all findings."""
    return [finding for check in CHECKS for finding in check(snapshot)]


def examine() -> int:
    """Check this machine and print the findings; returns the exit code."""
    all_findings = list_findings(gather())
    open_console().print(render(all_findings))
    return EXIT[find_worst_level(all_findings)]


def render(findings_to_show: list[Finding]) -> RenderableType:
    """Return the findings as a table."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1), show_edge=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings_to_show:
        lines = [Text(finding.text)]
        if finding.fix:
            lines.append(Text(f"-> {finding.fix}", style="bold"))
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.name, Group(*lines))
    bad = {level: sum(f.level == level for f in findings_to_show) for level in Level}
    warnings, failures = (
        f"{bad[level]} {word}{'' if bad[level] == 1 else 's'}"
        for level, word in ((Level.WARN, "warning"), (Level.FAIL, "failure"))
    )
    sums = f"{bad[Level.OK]} ok, {warnings}, {failures}"
    return Group(table, Text(), Text(sums, style="dim"))
