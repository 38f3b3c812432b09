"""A secret in the environment of a run stays there: no file of the run, no log and no report ever holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import small_job

CANARY = "canary-7f3a91c2e5d84b06"
NAMES = (
    "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "WANDB_API_KEY",
    "PIP_INDEX_URL",
    "DATABASE_PASSWORD",
    "DRIVETRAIN_SECRET",
)
PATHS = {"SSL_CERT_FILE": "ca.pem", "NETRC": "netrc"}
"""Variables that name a file with a secret in it."""


@pytest.mark.parametrize("fault", ["", "step:20:device", pytest.param("update:20:term", marks=pytest.mark.nightly)])
def test_no_file_of_a_run_contains_a_secret(tmp_path: Path, fault: str) -> None:
    job = small_job.write_job(tmp_path / "job", epochs="4")
    environment = {name: f"{CANARY}-{name}" for name in NAMES}
    for name, file in PATHS.items():
        (tmp_path / file).write_text(CANARY)
        environment[name] = str(tmp_path / file)
    text = small_job.finish(job, expected=9 if "device" in fault else 75 if fault else 0, FAULT=fault, **environment)
    assert CANARY not in text
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert {"report.html", "report.json", "hardware.json", "plan.json", "model.safetensors"} <= {p.name for p in files}
    assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == []
