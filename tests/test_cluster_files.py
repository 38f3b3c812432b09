"""The files for clusters: their places for a job hold together, and each engine's own schema takes them.

The schemas: python -m venv V && V/bin/pip install kubernetes-validate && DRIVETRAIN_KUBERNETES=V/bin/python python -m pytest
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from drivetrain import errors
from tests.paths import ROOT

FOLDER = ROOT / "examples" / "clusters"
KUBERNETES = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
SKYPILOT = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
RETRIED = (errors.PeerError.exit_code, errors.Stopped.exit_code)
FINAL = {
    kind.exit_code
    for kind in errors.Failure.__subclasses__()
    if kind not in (errors.PeerError, errors.Replanned, errors.RestartSmaller)  # the last two end no command
}
"""Exit codes after which another attempt would end in the same way."""


def get_job() -> dict[str, Any]:
    return next(document for document in KUBERNETES if document["kind"] == "Job")


def test_the_manifest_ends_the_job_after_each_code_that_would_come_again() -> None:
    rules = get_job()["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert set(codes["FailJob"]) >= FINAL
    assert codes["Ignore"] == [errors.Stopped.exit_code]
    assert not set(RETRIED) & set(codes["FailJob"])


def test_the_manifest_names_one_number_of_processes_and_one_meeting_place() -> None:
    spec = get_job()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(variables["WORLD_SIZE"])
    service = next(document for document in KUBERNETES if document["kind"] == "Service")
    assert variables["MASTER_ADDR"] == f"{get_job()['metadata']['name']}-0.{service['metadata']['name']}"
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}


def test_skypilot_starts_each_machine_with_its_rank(tmp_path: Path) -> None:
    assert SKYPILOT["resources"]["job_recovery"]["recover_on_exit_codes"] == list(RETRIED)
    program = tmp_path / "drivetrain" / "bin" / "drivetrain"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $*"\n')
    program.chmod(0o755)
    variables = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6"}
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables}
    done = subprocess.run(["bash", "-c", SKYPILOT["run"]], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1 2 10.0.0.5:29400 train job.yaml")


VALIDATOR = os.environ.get("DRIVETRAIN_KUBERNETES", "")
CHECK = """
import json, sys, kubernetes_validate
for line in sys.stdin:
    kubernetes_validate.validate(json.loads(line), kubernetes_validate.latest_version(), strict=True)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not VALIDATOR, reason="DRIVETRAIN_KUBERNETES does not name a Python with kubernetes-validate")
def test_the_strict_schemas_of_kubernetes_take_the_manifest() -> None:
    text = "".join(json.dumps(document) + "\n" for document in KUBERNETES)
    subprocess.run([VALIDATOR, "-c", CHECK], input=text, text=True, check=True)


PARSER = os.environ.get("DRIVETRAIN_SKYPILOT", "")


@pytest.mark.nightly
@pytest.mark.skipif(not PARSER, reason="DRIVETRAIN_SKYPILOT does not name a Python with skypilot")
def test_the_parser_of_skypilot_takes_the_task(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    (tmp_path / "task.yaml").write_text((FOLDER / "skypilot.yaml").read_text())
    parse = "import sky; task = sky.Task.from_yaml('task.yaml'); assert task.num_nodes == 2"
    environ = os.environ | {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    subprocess.run([PARSER, "-c", parse], cwd=tmp_path, env=environ, check=True, timeout=300)
