"""Calibrations as if recorded: probes of every kind of work, with the ratios that a test needs."""

from __future__ import annotations

from dataclasses import replace

from drivetrain.hardware import calibration_file
from drivetrain.hardware.calibration import Calibration, Probe
from drivetrain.hardware.facts import Hardware

NARROW, WIDE = 30_000, 400_000
WORKS = ("attention", "convolution", "linear", "recurrent")


def make_probe(
    setting: str,
    value: str,
    against: str,
    work: str,
    ratio: float,
    size: int = NARROW,
    beside: str = "",
    spread: float = 0.02,
) -> Probe:
    return Probe(
        setting=setting, value=value, against=against, work=work, size=size, beside=beside,
        ratio=ratio, low=ratio * (1 - spread), high=ratio * (1 + spread), pairs=8,
    )  # fmt: skip


def make_probes(ratio: float, spread: float = 0.02) -> tuple[Probe, ...]:
    """Every comparison of a machine on which all values have this ratio."""
    rows = []
    for size in (NARROW, WIDE):
        for work in WORKS:
            rows += [
                make_probe("precision", "bf16", "fp32", work, ratio, size, spread=spread),
                make_probe("cpu_threads", "1", "2", work, ratio, size, spread=spread),
                make_probe("openmp_runtime", "iomp5", "off", work, ratio, size, spread=spread),
                make_probe("allocator", "tcmalloc", "off", work, ratio, size, spread=spread),
            ]
        rows.append(make_probe("channels_last", "true", "false", "convolution", ratio, size, spread=spread))
    rows.append(make_probe("packed_dropout", "true", "false", "dropout", ratio, spread=spread))
    rows += [make_probe("unpadding", value, "off", "texts", ratio, spread=spread) for value in ("packed", "512")]
    return tuple(rows)


def add_calibration(hardware: Hardware, rows: tuple[Probe, ...], waited: float = 0.0) -> Hardware:
    """The hardware with a calibration of these probes."""
    calibration = Calibration(
        key=calibration_file.compute_key(hardware), date="2026-11-23", seconds=8.0, waited=waited, probes=rows,
        missing=("threads: the machine was busy",),
    )  # fmt: skip
    return replace(hardware, calibration=calibration)
