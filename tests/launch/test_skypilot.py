"""`drivetrain launch --on skypilot`: what the task says, what is refused, and what SkyPilot's parser and a run say.

The parser: python -m venv V && V/bin/pip install skypilot && DRIVETRAIN_SKYPILOT=V/bin/python python -m pytest THIS_FILE
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import nodes
from tests.launch.cluster_site import IMAGE, ClusterSite
from tests.messages import says
from tests.supervisor.tiny_run import have_same_weights, read_rows, train
from tests.waiting import wait_until

SPEC = "name: tiny\ntask: image-classification\ndata: {train: /data/images.npz}\nenvironment: [HF_TOKEN]\n"
SECTION: dict[str, Any] = {
    "image": IMAGE,
    "runs": "/data/runs",
    "volumes": {"/data": "datasets"},
    "resources": {"accelerators": "A100", "use_spot": True},
}
SITE = ClusterSite("skypilot", SECTION)
write, launch = SITE.write, SITE.launch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return SITE.prepare(tmp_path, SPEC)


GPUS = ("--nodes", "2", "--device", "gpu", "--per-node", "4")


def test_a_task_says_what_a_node_runs_and_what_brings_it_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(*GPUS) == 0
    out = capsys.readouterr().out
    assert says(out, "submit-hf-token-set")
    assert says(out, "submit-sky-jobs-launch", folder, "/tiny.sky.yaml")
    task = yaml.safe_load((folder / "tiny.sky.yaml").read_text())
    assert (task["name"], task["num_nodes"], task["volumes"]) == ("tiny", 2, {"/data": "datasets"})
    assert task["secrets"] == {"HF_TOKEN": None}
    assert task["resources"] == {
        "image_id": f"docker:{IMAGE}",
        "cpus": "2+",
        "memory": "4+",
        "accelerators": "A100:4",
        "use_spot": True,
        "job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [8, 75]},
    }
    assert "setup" not in task
    assert "  run: |" not in task["run"]
    assert task["run"].splitlines()[-1] == (
        "exec python -m drivetrain train /tmp/drivetrain-job/tiny.yaml --set limits.nodes=2 --set limits.gpus=all "
        "--runs /data/runs"
    )


def test_a_job_file_arrives_as_it_is(folder: Path) -> None:
    text = SPEC.replace("name: tiny", "name: tiny  # costs $HOME `pwd` \\n 'x'")
    (folder / "tiny.yaml").write_text(text)
    assert launch(*GPUS) == 0
    block = yaml.safe_load((folder / "tiny.sky.yaml").read_text())["run"]
    block = block.replace("/tmp/drivetrain-job", str(folder / "on-node")).replace("exec python", "exit 0; python")
    subprocess.run(["bash", "-c", block], check=True)
    assert (folder / "on-node" / "tiny.yaml").read_text() == text


@pytest.mark.parametrize(
    ("change", "arguments", "expected"),
    [
        ({"image": "ghcr.io/owner/cpu:1"}, GPUS, "skypilot.image: is 'ghcr.io/owner/cpu:1'\n  possible: an image by"),
        (
            {"resources": {"image_id": "docker:x"}},
            GPUS,
            "skypilot.resources.image_id: is 'image_id'\n  possible: other",
        ),
        ({"runs": "/elsewhere"}, GPUS, "site.yaml: skypilot.volumes: runs: /elsewhere is below no volume"),
        (
            {"runs": "/bucket/runs", "file_mounts": {"/bucket": {"source": "s3://b"}}},
            GPUS,
            "skypilot.runs: /bucket/runs is below no volume",
        ),
        ({"resources": {}}, GPUS, "skypilot.resources.accelerators is missing"),
        ({"resources": {"accelerators": "A100:8"}}, GPUS, "is A100:8, and there are 4 processes on each node"),
        ({}, ("--nodes", "2"), "skypilot.resources.accelerators is 'A100', and --device is cpu"),
        ({"runs": None}, GPUS, "skypilot.runs: is null"),
    ],
)
def test_a_wrong_site_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], arguments: tuple[str, ...], expected: str
) -> None:
    write(folder, **change)
    assert launch(*arguments) == 2
    assert expected in capsys.readouterr().err
    assert not (folder / "tiny.sky.yaml").exists()


PARSER = os.environ.get("DRIVETRAIN_SKYPILOT", "")
PARSE = """
import sys, sky
from sky.utils import common_utils
for path in sys.argv[1:]:
    try:
        task = sky.Task.from_yaml(path)
        recovery = {str(each.job_recovery) for each in task.resources}
        images = {str(each.image_id) for each in task.resources}
        print("good", task.name, task.num_nodes, recovery, images)
    except Exception as error:
        print("bad", " ".join(str(error).split()))
"""


@pytest.mark.skipif(not PARSER, reason="DRIVETRAIN_SKYPILOT does not name a Python with skypilot")
def test_skypilot_takes_the_task_and_refuses_typing_errors(folder: Path) -> None:
    assert launch(*GPUS) == 0
    text = (folder / "tiny.sky.yaml").read_text()
    wrong = ["num_nodes", "resources", "image_id", "accelerators", "use_spot", "job_recovery"]
    paths = [folder / "tiny.sky.yaml"]
    for key in wrong:
        assert text.count(f"{key}:") == 1
        paths.append(folder / f"{key}.yaml")
        paths[-1].write_text(text.replace(f"{key}:", f"{key}s:"))
    environ = os.environ | {"HF_TOKEN": "x", "HOME": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [PARSER, "-c", PARSE, *map(str, paths)], env=environ, capture_output=True, text=True, timeout=300
    )
    said = done.stdout.splitlines()
    assert said[0].startswith("good tiny 2"), done.stdout + done.stderr
    assert "'recover_on_exit_codes': [8, 75]" in said[0]
    assert IMAGE in said[0]
    assert [line.split()[0] for line in said[1:]] == ["bad"] * len(wrong), done.stdout


@pytest.mark.nightly
@pytest.mark.skipif(bool(nodes.MISSING), reason=nodes.MISSING)
def test_the_nodes_train_with_what_skypilot_gives_them(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run block twice, with SkyPilot's variables and no others; stopped once, and run again as recovery does."""
    home = job.parent
    monkeypatch.chdir(home)
    job.write_text(job.read_text().replace("images.npz", f"{home}/images.npz").replace("epochs: 4", "epochs: 60"))
    command = [sys.executable, "-m", "drivetrain"]
    write(home, runs=str(home / "runs"), volumes={str(home): "datasets"}, resources={}, command=command)
    assert launch("--nodes", "2") == 0
    block = yaml.safe_load((home / "tiny.sky.yaml").read_text())["run"]
    with nodes.network(2) as machines:
        addresses = "\n".join(machine.address for machine in machines)

        def start() -> list[subprocess.Popen[bytes]]:
            return [
                machine.start(
                    [
                        *("env", "-i", f"PATH={os.environ['PATH']}", f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"),
                        *("SKYPILOT_NUM_NODES=2", f"SKYPILOT_NODE_RANK={number}", f"SKYPILOT_NODE_IPS={addresses}"),
                        *("bash", "-c", block),
                    ],
                    home / f"node-{number}.log",
                )
                for number, machine in enumerate(machines)
            ]

        processes, run = start(), home / "runs" / "tiny-001"
        wait_until(lambda: (run / "metrics.jsonl").exists() and len(read_rows(run)) > 10, 300)
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(120) for process in processes] == [75, 75]
        processes = start()
        assert [process.wait(300) for process in processes] == [0, 0], (home / "node-0.log").read_text()
    assert "(SKYPILOT_* variables)" in (home / "node-0.log").read_text()
    reference = ["--set", "limits.processes=2", "--set", "limits.gpus=none", "--runs", str(home / "reference")]
    assert train(job, *reference).returncode == 0
    assert have_same_weights(home / "reference" / "tiny-001", run)
