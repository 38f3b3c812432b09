"""What the generated batch script does after each way in which training can end; stubs stand for srun and scontrol."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from drivetrain.launch.clusters import cluster_launch
from tests.messages import omits, says

SRUN = """\
#!/bin/bash
# Plays one line of `attempts`: the exit code, then the ends that the nodes leave, as NODE=CODE; hang: never ends.
# A step that only asks whether a node answers gets no answer from those in `dead`.
case "$*" in *--overlap*) ! grep -qs "nodelist=$(cat dead 2>/dev/null) " <<< "$*"; exit ;; esac
words="$*"
echo "${words//$'\n'/ }" >> srun.log
line=$(sed -n "$(wc -l < srun.log)p" attempts)
set -- $line
for end in "${@:2}"; do [ "$end" = hang ] || echo "${end#*=}" > "runs/.slurm-7/${end%=*}"; done
case "$line" in *hang*) exec sleep 600 ;; esac
exit "$1"
"""


SCONTROL = """\
#!/bin/bash
if [ "$1" = show ]; then printf '%s\\n' a1 a2; else echo "$@" >> scontrol.log; fi
"""


VALUES = {
    "job_name": "tiny",
    "node_count": "2 nodes",
    "folder": "/a b",
    "log": "/a b/log",
    "nodes": 2,
    "tasks_per_node": 1,
    "grace_seconds": 120,
    "cpus": 2,
    "command": ["drivetrain", "train", "a b.yaml"],
    "srun_options": ["--x"],
    "least": 2,
    **dict.fromkeys(("minutes", "memory", "gpus", "options", "setup", "files")),
}


def script(folder: Path, attempts: Sequence[str], least: int = 2) -> list[str]:
    """The command of a job on two nodes whose attempts end as given, and that goes on with the least number of nodes."""
    folder.joinpath("attempts").write_text("\n".join(attempts) + "\n")
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        folder.joinpath(name).write_text(text)
        folder.joinpath(name).chmod(0o755)
    text = cluster_launch.fill("slurm.sbatch", VALUES | {"least": least})
    for before, after in (
        ("sleep 2\n", "sleep 0.05\n"),
        ("silence=60 ", "silence=6 "),
        ("patience=10 ", "patience=5 "),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    folder.joinpath("job.sbatch").write_text(text)
    return ["bash", "job.sbatch"]


def environ(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_JOB_NODELIST": "a[1-2]",
    }


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("attempts", "code", "started", "requeued"),
    [
        (["0 0=0 1=0"], 0, 1, False),
        (["75 0=75 1=75"], 75, 1, True),
        (["8 0=8 1=8", "0 0=0"], 0, 2, False),
        (["137 0=8", "137 1=8", "75 0=75"], 75, 3, True),
        (["8", "8", "8"], 8, 3, False),
        (["8 0=0 1=8"], 0, 1, False),
        *(([f"{code} 0={code}"], code, 1, False) for code in (1, 2, 3, 4, 5, 6, 7, 9, 11)),
        (["0 1=8 hang"], 8, 1, True),
        (["0 0=75 hang"], 8, 1, True),
        (["0 0=0 hang"], 0, 1, False),
    ],
)
def test_exit_codes_decide(tmp_path: Path, attempts: list[str], code: int, started: int, requeued: bool) -> None:
    done = subprocess.run(
        script(tmp_path, attempts), cwd=tmp_path, env=environ(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert len(lines(tmp_path / "srun.log")) == started
    assert lines(tmp_path / "scontrol.log") == (["requeue 7"] if requeued else [])
    assert not (tmp_path / "runs" / ".slurm-7").exists()


@pytest.mark.parametrize(
    ("attempts", "least", "code", "hosts", "requeued"),
    [
        (["8 0=8 hang", "0 0=0"], 1, 0, ["a1,a2", "a1"], False),
        (["8 0=8 hang", "75 0=75"], 1, 75, ["a1,a2", "a1"], True),
        (["8 0=8 hang"], 2, 8, ["a1,a2"], True),
        (["8 0=8", "0 0=0"], 1, 0, ["a1,a2", "a1"], False),  # Slurm has noticed that the task of a2 is gone
        (["8 0=8 1=8", "0 0=0"], 1, 0, ["a1,a2", "a1,a2"], False),
    ],
)
def test_a_node_that_does_not_answer_is_left_out_if_the_job_allows_it(
    tmp_path: Path, attempts: list[str], least: int, code: int, hosts: list[str], requeued: bool
) -> None:
    command = script(tmp_path, attempts, least)
    (tmp_path / "dead").write_text("a2")
    text = (tmp_path / "job.sbatch").read_text()
    (tmp_path / "job.sbatch").write_text(
        text.replace("silence=6 ", "silence=1000 ")
    )  # nobody waits for the node itself
    done = subprocess.run(command, cwd=tmp_path, env=environ(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    started = [line.partition("--nodelist=")[2].split()[0] for line in lines(tmp_path / "srun.log")]
    assert started == hosts
    assert (says if hosts[1:] == ["a1"] else omits)(done.stdout, "training-goes-a1", 1, 2)
    assert lines(tmp_path / "scontrol.log") == (["requeue 7"] if requeued else [])


def test_a_job_that_slurm_ends_is_not_queued_again(tmp_path: Path) -> None:
    command = script(tmp_path, ["75 hang"])
    running = subprocess.Popen(command, cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.PIPE, text=True)
    (tmp_path / "runs").mkdir(exist_ok=True)
    end = time.monotonic() + 60
    while not (tmp_path / "srun.log").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    (tmp_path / "runs" / ".slurm-7" / "0").write_text("75")
    out, _ = running.communicate(timeout=60)
    assert "ended by Slurm" in out
    assert lines(tmp_path / "scontrol.log") == []


def test_training_starts_once_on_each_node_with_the_cpus_of_the_job(tmp_path: Path) -> None:
    subprocess.run(script(tmp_path, ["0 0=0"]), cwd=tmp_path, env=environ(tmp_path), check=True, timeout=60)
    (line, *_) = lines(tmp_path / "srun.log")
    assert "--ntasks-per-node=1 --cpu-bind=none --cpus-per-task=2 --x bash -c" in line
    assert "--kill-on-bad-exit=0" in line


NODE = cluster_launch.fill("slurm.sbatch", VALUES).partition("node='\n")[2].partition("'\n\n")[0]


@pytest.mark.parametrize(("program", "code"), [("exit 9", 9), ("kill -KILL $$", 137)])
def test_a_node_leaves_its_exit_code(tmp_path: Path, program: str, code: int) -> None:
    command = ["bash", "-c", NODE, str(tmp_path), "bash", "-c", program]
    done = subprocess.run(
        command, env={**os.environ, "SLURM_NODEID": "1"}, timeout=60, check=False, capture_output=True
    )
    assert done.returncode == code
    assert (tmp_path / "1").read_text() == f"{code}\n"


def test_a_node_hands_the_signal_on_and_waits(tmp_path: Path) -> None:
    """Where Slurm signals the shell alone; a repeated signal changes nothing."""
    training = f"trap 'sleep 0.3; exit 75' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    command = ["bash", "-c", NODE, str(tmp_path), "bash", "-c", training]
    running = subprocess.Popen(command, env={**os.environ, "SLURM_NODEID": "0"})
    end = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    for _ in range(3):
        running.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    assert running.wait(60) == 75
    assert (tmp_path / "0").read_text() == "75\n"
