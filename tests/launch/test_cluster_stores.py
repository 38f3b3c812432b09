"""Credentials of object stores on clusters: named in what is written, never in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from drivetrain.cli import main
from drivetrain.errors import SpecError
from tests.messages import says, says_only

SECRET = "a-value-that-no-file-may-hold"
IMAGE = f"ghcr.io/owner/drivetrain/cpu@sha256:{'0' * 64}"
SPEC = """
name: tiny
task: image-classification
data: {train: "gs://bucket/shards", stream: true}
checkpoint: {copy_to: "s3://bucket/runs"}
"""
SITE: dict[str, Any] = {
    "slurm": {"command": ["drivetrain"]},
    "k8s": {
        "image": IMAGE,
        "runs": "/data/runs",
        "claims": [{"claim": "datasets", "at": "/data"}],
        "secrets": {
            "AWS_SECRET_ACCESS_KEY": {"name": "store", "key": "secret"},
            "GOOGLE_APPLICATION_CREDENTIALS": {"name": "google", "key": "key.json"},
        },
    },
    "skypilot": {"image": IMAGE, "runs": "/data/runs", "volumes": {"/data": "datasets"}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.yaml").write_text(SPEC)
    write(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_BEARER_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, **keys: dict[str, Any]) -> None:
    site = SITE | {key: SITE[key] | value for key, value in keys.items()}
    site["slurm"] = site["slurm"] | {"shared": [str(folder)]}
    (folder / "site.yaml").write_text(json.dumps(site))


def launch(engine: str, capsys: pytest.CaptureFixture[str]) -> str:
    arguments = ["--on", engine, "--site", "site.yaml", "--nodes", "2", "--output", "out"]
    assert main.main(["launch", "tiny.yaml", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("engine", SITE)
def test_no_written_file_has_a_value(folder: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    assert SECRET not in launch(engine, capsys)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert folder / "out" in files
    assert not any(SECRET in file.read_text() for file in files)


def test_kubernetes_takes_keys_of_secrets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "k8s.secrets names no" not in launch("k8s", capsys)
    job = next(entry for entry in yaml.safe_load_all((folder / "out").read_text()) if entry["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    variables = {entry["name"]: entry for entry in pod["containers"][0]["env"]}
    value = variables["AWS_SECRET_ACCESS_KEY"]["valueFrom"]
    assert value == {"secretKeyRef": {"name": "store", "key": "secret"}}
    path = variables["GOOGLE_APPLICATION_CREDENTIALS"]["value"]
    mount = next(entry for entry in pod["containers"][0]["volumeMounts"] if path.startswith(entry["mountPath"] + "/"))
    assert mount["readOnly"]
    (source,) = [entry["secret"] for entry in pod["volumes"] if entry["name"] == mount["name"]]
    assert source == {"secretName": "google", "items": [{"key": "key.json", "path": Path(path).name}]}


def test_what_is_not_handed_over_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, k8s={"secrets": {}})
    assert says(launch("k8s", capsys), "names-aws-variable-s3", "k8s.secrets")
    assert says(launch("slurm", capsys), "submit-google-bearer-token")
    write(folder, slurm={"options": {"export": "NONE"}})
    assert says(launch("slurm", capsys), "none-google-bearer-token", "slurm.options.export")
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    assert says(launch("slurm", capsys), "google-variable-set-gs")
    assert says(launch("skypilot", capsys), "google-variable-set-gs-nodes")


def test_skypilot_takes_names_and_no_files(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--secret GOOGLE_BEARER_TOKEN --secret AWS_ACCESS_KEY_ID" in launch("skypilot", capsys)
    secrets = yaml.safe_load((folder / "out").read_text())["secrets"]
    assert secrets == dict.fromkeys(("GOOGLE_BEARER_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json")
    arguments = ["launch", "tiny.yaml", "--on", "skypilot", "--site", "site.yaml", "--output", "other"]
    assert main.main(arguments) == SpecError.exit_code
    assert says_only(capsys.readouterr().err, "google-application-credentials-names")
    assert not (folder / "other").exists()
