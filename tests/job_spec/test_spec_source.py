"""A child process loads the same job as its parent."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest

from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource


@pytest.mark.parametrize(
    "source",
    [
        SpecSource(Path("jobs/a.yaml")),
        SpecSource(Path("jobs/a.yaml"), ["train.epochs=3", "name=b"], {"batch_size": 64, "epochs": 3}),
        SpecSource(Path("runs/a-001/job.yaml"), [], {}, Path("jobs")),
        SpecSource(Path("runs/a-001/job.yaml"), [], {}, Path("jobs"), {"a b.py": "0" * 64}),
        SpecSource(Path("runs/a-001/job.yaml"), code={}),
    ],
)
def test_through_the_command_line_of_a_child(source: SpecSource) -> None:
    """Programs that measure have a `folder` of their own, which is not the one of the spec's paths."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    spec_source.add_options(parser)
    arguments = parser.parse_args(["scratch", str(source.spec), *source.options()])
    rebuilt = SpecSource.from_arguments(arguments)
    assert (rebuilt.spec, list(rebuilt.assignments), rebuilt.measured, rebuilt.folder, rebuilt.code) == (
        source.spec,
        list(source.assignments),
        source.measured,
        source.folder,
        source.code,
    )


def test_settings_that_are_long_together_reach_a_child() -> None:
    """Linux takes at most 128 KiB in one argument."""
    source = SpecSource(Path("a.yaml"), [f"name={letter * 50_000}" for letter in "abc"])
    assert max(len(word) for word in source.options()) < 128 << 10
    subprocess.run(["true", *source.options()], check=True)
