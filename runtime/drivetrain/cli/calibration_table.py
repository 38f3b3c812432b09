"""`drivetrain calibrate`: measures this machine once and shows what it found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from drivetrain.errors import DeviceError
from drivetrain.hardware import calibration_file
from drivetrain.hardware.calibration import Calibration
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.launch import run_in_image
from drivetrain.system import signals
from drivetrain.system.console import open_console, say_aside, say_json
from drivetrain.system.installation import INSTALL_TORCH
from drivetrain.tuning.calibration import calibrate


def show(*, as_json: bool, measure_again: bool) -> int:
    """Calibrate if there is no calibration yet, and print it.

    Args:
        as_json: print JSON instead of tables.
        measure_again: make a new one in place of the one that is kept.

    Raises:
        DeviceError: if nothing could be measured.
    """
    if run_in_image.torch_is_missing():
        raise DeviceError(
            "torch is not installed here, and only torch can be calibrated",
            "torch in the local environment; a container calibrates itself at its first training",
            f"nothing, if you train in containers; else `{INSTALL_TORCH}`",
        )
    signals.stop_early()
    machine = detect(Path("runs"))
    outcome = calibrate.load_or_measure(machine, measure_again=measure_again, limit=calibrate.ON_REQUEST)
    for event in outcome.events:
        say_aside(f"calibration: {event}")
    if outcome.calibration is None:
        raise DeviceError(
            f"the machine could not be calibrated: {outcome.events[-1] if outcome.events else 'nothing was measured'}",
            "a machine on which torch computes, with a temporary folder that can be written",
            f"train without a calibration: set {calibration_file.SWITCH_VARIABLE}=off; `drivetrain doctor` examines the machine",
        )
    if as_json:
        say_json(asdict(outcome.calibration))
    else:
        open_console().print(render(outcome.calibration, machine, was_kept=outcome.was_stored))
    return 0


def render(calibration: Calibration, machine: Hardware, *, was_kept: bool) -> RenderableType:
    """Comparisons for 100 columns, followed by what was not measured."""
    head = Text(f"calibration of {machine.name}", style="bold")
    head.append(f", {calibration.date}, {calibration.seconds:.0f} s{', kept' if was_kept else ''}\n", style="not bold")
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim", show_edge=False)
    for title in ("setting", "value", "against", "on", "size", "speed", "middle half", "pairs"):
        rows.add_column(title, no_wrap=title != "on", overflow="fold")
    for probe in calibration.probes:
        on = f"{probe.work}, {probe.beside}" if probe.beside else probe.work
        spread = f"{probe.low:.2f}-{probe.high:.2f}"
        size = f"{probe.size:,}"
        rows.add_row(
            probe.setting, probe.value, probe.against, on, size, f"{probe.ratio:.2f}x", spread, str(probe.pairs)
        )
    return Group(head, rows, *_list_notes(calibration, machine))


def _list_notes(calibration: Calibration, machine: Hardware) -> Iterator[Text]:
    lines = [f"not measured: {line}" for line in calibration.missing]
    if calibration.is_busy:
        lines.append(f"{calibration.disturbance}; without that, `drivetrain calibrate --again` measures more")
    lines.append(f"kept in {calibration_file.find_path(machine)}")
    return (Text(f"  {line}", style="dim") for line in lines)
