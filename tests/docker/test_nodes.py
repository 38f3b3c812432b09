"""The script for several Docker engines, with a real one: what a container gets, and what the engine shows of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.launch.cluster_site import IMAGE, ClusterSite

KEY = "sk-0123456789abcdef"
SPEC = """
name: tiny
task: image-classification
data: {train: "s3://bucket/one", validation: 0.2, stream: true}
limits: {memory: 256m}
environment: [MY_API_KEY]
"""
SECTION = {"image": IMAGE, "meet": "127.0.0.1:29477", "mounts": {"/data": "/srv"}, "runs": "/data/runs"}
SHOW = (
    "import os, sys, time\nfrom pathlib import Path\nfrom drivetrain.system import secrets\nsecrets.load_secrets()\n"
    "one = Path('/run/secrets/MY_API_KEY')\n"
    "print(os.getuid(), oct(one.stat().st_mode & 0o777), len(os.environ['MY_API_KEY']), os.environ['AWS_REGION'])\n"
    "print('masked:', secrets.mask_secrets('token ' + os.environ['MY_API_KEY']), flush=True)\n"
    "time.sleep(600)"
)


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout


def test_variables_reach_a_container_and_not_its_settings(
    cpu_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only, without capabilities, as somebody else than root: its memory takes them nevertheless."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_API_KEY", KEY)
    monkeypatch.setenv("AWS_REGION", "eu-south-2")
    site = ClusterSite("nodes", SECTION | {"contexts": ["default", "default"]}, ("--nodes", "2"))
    site.prepare(tmp_path, SPEC)
    assert site.launch() == 0
    path = tmp_path / "tiny.nodes.sh"
    text = path.read_text()
    assert text.count('exec "$@"') == 1
    (tmp_path / "show.py").write_text(SHOW)
    shown = 'exec python -c "$SHOW"'
    text = text.replace('exec "$@"', shown).replace(IMAGE, cpu_image)
    text = text.replace('--env DRIVETRAIN_JOB="$job"', '--env DRIVETRAIN_JOB="$job" --env SHOW="$(cat show.py)"')
    path.write_text(text)
    with (tmp_path / "log").open("w") as log:
        script = subprocess.Popen(["bash", str(path)], stdout=log, stderr=log)
    try:
        for _ in range(600):
            if "masked" in (tmp_path / "log").read_text() or script.poll() is not None:
                break
            subprocess.run(["sleep", "0.1"], check=True)
        told = (tmp_path / "log").read_text()
        settings = json.loads(docker("inspect", "drivetrain-tiny-0", "drivetrain-tiny-1"))
    finally:
        script.terminate()
        script.wait(60)
    assert told.splitlines()[:2] == [f"1000 0o600 {len(KEY)} eu-south-2", "masked: token ***"]
    assert all(each["HostConfig"]["ReadonlyRootfs"] for each in settings)
    assert KEY not in json.dumps(settings) + text + told
    assert docker("ps", "-aq", "--filter", "name=drivetrain-tiny-") == ""
