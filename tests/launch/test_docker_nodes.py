"""`drivetrain launch --on nodes`: the script for several Docker engines, what is refused, and what it does by exit codes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import nodes
from tests.launch.cluster_site import IMAGE, ClusterSite
from tests.paths import IMPORTS, ROOT
from tests.supervisor.tiny_run import rows, same, train
from tests.waiting import until

SPEC = (
    "name: tiny  # costs $5 'a day'\ntask: image-classification\ndata: {train: /data/images.npz}\nlimits: {cpus: 2}\n"
)
SECTION: dict[str, Any] = {
    "image": IMAGE,
    "contexts": ["node0", "node1"],
    "meet": "10.77.0.1:29400",
    "mounts": {"/data": "/srv/data"},
    "runs": "/data/runs",
    "grace": "20s",
}
SITE = ClusterSite("nodes", SECTION, ("--nodes", "2"))
write, launch = SITE.write, SITE.launch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return SITE.prepare(tmp_path, SPEC)


def engines(folder: Path, starts: dict[str, list[str]]) -> dict[str, str]:
    """The environment in which `docker` is the double."""
    home, bin_ = folder / "engines", folder / "bin"
    home.mkdir()
    bin_.mkdir()
    (bin_ / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/launch/docker_double.py "$@"\n')
    (bin_ / "docker").chmod((bin_ / "docker").stat().st_mode | stat.S_IXUSR)
    for context, words in starts.items():
        (home / f"{context}.json").write_text(json.dumps(words))
    path = f"{bin_}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "ENGINES": str(home), "PYTHONPATH": IMPORTS}


def test_a_script_runs_one_hardened_container_on_each_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch("--per-node", "2") == 0
    assert f"to submit it: bash {folder}/tiny.nodes.sh" in capsys.readouterr().out
    text = (folder / "tiny.nodes.sh").read_text()
    assert "contexts=(node0 node1)" in text
    assert (
        "options=(--init --read-only --cap-drop=ALL --security-opt=no-new-privileges:true --pids-limit=512 --ulimit=core=0 --user=1000:1000 "
        "--network=host --cpus=2 --memory=4096m --memory-swap=4096m --shm-size=256m --tmpfs=/tmp:exec,mode=1777 "
        "--tmpfs=/cache:exec,mode=1777 --volume=/srv/data:/data)"
    ) in text
    assert "--set limits.processes=2 --set limits.gpus=none --runs /data/runs --meet 10.77.0.1:29400)" in text
    told = subprocess.run(
        ["bash", "-c", text.partition("options=")[0] + 'printf %s "$job"'], capture_output=True, text=True, check=True
    )
    assert told.stdout == SPEC


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"image": "ghcr.io/owner/cpu:1"}, "nodes.image: is 'ghcr.io/owner/cpu:1'\n  possible: an image by its digest"),
        ({"contexts": ["node0"]}, "nodes.contexts has 1, and --nodes is 2"),
        ({"meet": "a b"}, "nodes.meet 'a b'\n  possible: HOST:PORT"),
        ({"runs": "/elsewhere"}, "site.yaml: nodes.mounts: runs: /elsewhere is below no volume"),
        ({"runs": None}, "nodes.runs: is null"),
    ],
)
def test_a_wrong_site_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], expected: str
) -> None:
    write(folder, **change)
    assert launch() == 2
    assert expected in capsys.readouterr().err
    assert not (folder / "tiny.nodes.sh").exists()


SECRETS = "environment: [MY_API_KEY]\n"
SHOW = 'cd $0; for each in *; do echo "$each=$(cat $each)"; done; stat -c %a MY_API_KEY'


def handing_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script whose containers show what they have been given, and the environment that it is started in."""
    key = folder / "key.json"
    key.write_text("{}")
    for name, value in {"AWS_SECRET_ACCESS_KEY": "s t'$", "GOOGLE_APPLICATION_CREDENTIALS": str(key)}.items():
        monkeypatch.setenv(name, value)
    data = "data: {train: 's3://bucket/one', validation: 'gs://bucket/two', stream: true}"
    (folder / "tiny.yaml").write_text(SPEC.replace("data: {train: /data/images.npz}", data) + SECRETS)
    assert launch() == 0
    path = folder / "tiny.nodes.sh"
    text = path.read_text()
    assert 'exec "$@"' in text
    path.write_text(text.replace('exec "$@"', f"exec sh -c '\"'\"'{SHOW}'\"'\"' /run/secrets"))
    return path


def test_variables_reach_the_containers_and_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through a pipe: the script and the settings of a container hold names alone."""
    monkeypatch.setenv("MY_API_KEY", "0123456789")
    path = handing_over(folder, monkeypatch)
    told = capsys.readouterr().out
    assert "environment: MY_API_KEY, GOOGLE_APPLICATION_CREDENTIALS, AWS_SECRET_ACCESS_KEY (handed to each" in told
    text = path.read_text()
    assert "--tmpfs=/run/secrets:mode=0700,uid=1000,gid=1000" in text
    assert not [value for value in ("0123456789", "s t'$") if value in text]
    done = subprocess.run(
        ["bash", str(path)],
        env=engines(folder, {"node0": [], "node1": []}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:4] == [
        "AWS_SECRET_ACCESS_KEY=s t'$",
        "GOOGLE_APPLICATION_CREDENTIALS.file={}",
        "MY_API_KEY=0123456789",
        "600",
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"MY_API_KEY": ""}, "MY_API_KEY is not set, and this script hands it to the containers\n  possible: "),
        ({"GOOGLE_APPLICATION_CREDENTIALS": "/no/file"}, "GOOGLE_APPLICATION_CREDENTIALS: the file /no/file cannot be"),
    ],
    ids=["variable", "file"],
)
def test_without_a_variable_no_container_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("MY_API_KEY", "0123456789")
    path = handing_over(folder, monkeypatch)
    environ = engines(folder, {"node0": [], "node1": []}) | change
    done = subprocess.run(["bash", str(path)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert expected in done.stderr


def test_a_store_without_credentials_needs_a_role(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tiny.yaml").write_text(
        SPEC.replace("/data/images.npz", "'s3://bucket/one', validation: 0.2, stream: true")
    )
    assert launch() == 0
    assert "no AWS_... variable is set here: for s3:// the nodes need a role" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("leader", "other", "code", "attempts"),
    [
        ("exit 0", "exit 0", 0, 1),
        ("exit 75", "exit 75", 75, 1),
        ("exit 0", "exit 8", 0, 1),
        ("exit 8", "exit 3", 3, 1),
        ("exit 2", "exit 2", 2, 1),
        ("exit 8", "exit 137", 8, 3),
        pytest.param("exit 8", "sleep 100", 8, 3, marks=pytest.mark.nightly),
    ],
)
def test_exit_codes_decide_what_follows(folder: Path, leader: str, other: str, code: int, attempts: int) -> None:
    assert launch() == 0
    path = folder / "tiny.nodes.sh"
    begin, rest = path.read_text().split("train=(", 1)
    body = rest.split("\n", 1)[1].replace("silence=60", "silence=10")
    path.write_text(f"{begin}train=(-c 'case $4 in 0) {leader};; 1) {other};; esac' sh)\n{body}")
    done = subprocess.run(
        ["bash", str(path)],
        env=engines(folder, {"node0": [], "node1": []}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.count("a node was lost") == (attempts if attempts > 1 else 0)
    assert [path.suffix for path in (folder / "engines").iterdir()] == [".json", ".json"], "no container is left"


DOWN = "no Docker engine answers in "


@pytest.mark.parametrize(
    ("bounds", "down", "code", "told"),
    [
        ("{least: 1, most: 2}", "node1", 0, f"{DOWN}node1\ntraining goes on with 1 of 2 nodes\n--nodes 1 --node 0\n"),
        (
            "{least: 1, most: 2}",
            "node0",
            8,
            f"{DOWN}node0\nnode0 leads, and has the run: training cannot go on without",
        ),
        ("{least: 2}", "node1", 8, f"{DOWN}node1\ntraining needs 2 nodes (limits.nodes of the job), and 1 answer\n"),
        ("2", "node1", 8, f"{DOWN}node1\ntraining needs 2 nodes (limits.nodes of the job), and 1 answer\n"),
    ],
)
def test_an_engine_that_does_not_answer_is_left_out_if_the_job_allows_it(
    folder: Path, capsys: pytest.CaptureFixture[str], bounds: str, down: str, code: int, told: str
) -> None:
    (folder / "tiny.yaml").write_text(SPEC.replace("cpus: 2", f"nodes: {bounds}"))
    assert launch() == 0
    size = "1 to 2 nodes" if "1" in bounds else "2 nodes"
    assert f"tiny.nodes.sh written: {size}, 1 process on each" in capsys.readouterr().out
    path = folder / "tiny.nodes.sh"
    begin, rest = path.read_text().split("train=(", 1)
    path.write_text(f"{begin}train=(-c 'echo \"$@\"' sh)\n{rest.split(chr(10), 1)[1]}")
    environ = engines(folder, {"node0": [], "node1": []})
    (folder / "engines" / f"{down}.down").touch()
    done = subprocess.run(["bash", str(path)], env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.startswith(told)


@pytest.mark.nightly
@pytest.mark.skipif(bool(nodes.MISSING), reason=nodes.MISSING)
def test_a_stopped_script_resumes_and_a_lost_node_costs_no_bit(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = job.parent
    monkeypatch.chdir(home)
    job.write_text(job.read_text().replace("images.npz", f"{home}/images.npz").replace("epochs: 4", "epochs: 60"))
    write(home, mounts={str(home): str(home)}, runs=str(home / "runs"))
    assert launch() == 0
    run = home / "runs" / "tiny-001"
    with nodes.network(2) as machines:
        environ = engines(home, {machine.name: machine.command([]) for machine in machines})

        def start() -> subprocess.Popen[bytes]:
            with (home / "script.log").open("ab") as log:
                return subprocess.Popen(
                    ["bash", str(home / "tiny.nodes.sh")], cwd=home, env=environ, stdout=log, stderr=log
                )

        script = start()
        until(lambda: (run / "metrics.jsonl").exists() and len(rows(run)) > 10, 300)
        script.send_signal(signal.SIGTERM)
        assert script.wait(120) == 75, (home / "script.log").read_text()
        before = len(rows(run))
        script = start()
        until(lambda: len(rows(run)) > before + 10, 300)
        kill = ["docker", "--context", "node1", "kill", "drivetrain-tiny-1"]
        subprocess.run(kill, env=environ, check=True)
        assert script.wait(400) == 0, (home / "script.log").read_text()
    assert "a node was lost (exit 8, attempt 1 of 3)" in (home / "script.log").read_text()
    reference = ["--set", "limits.processes=2", "--set", "limits.gpus=none", "--runs", str(home / "reference")]
    assert train(job, *reference).returncode == 0
    assert same(home / "reference" / "tiny-001", run)
