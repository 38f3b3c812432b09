"""A real Slurm from Debian's packages (slurmctld, slurmd, slurm-client, munge) on machines made of network namespaces."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import nodes
from tests.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
MISSING = nodes.MISSING or next((f"needs {name}" for name in PROGRAMS if not shutil.which(name)), "")
"""Why there can be no Slurm here."""
CONF = """\
ClusterName=test
SlurmctldHost=node0({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=120
SlurmdTimeout={patience}
KillWait=30
OverTimeLimit=0
JobRequeue=1
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
{lines}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The machines, and Slurm's own commands, run on the first of them."""

    def __init__(self, machines: Sequence[nodes.Node], home: Path, patience: int) -> None:
        self.machines, self.home = machines, home
        self.environ = {"SLURM_CONF": str(home / "slurm.conf")}
        lines = [f"NodeName={machine.name} NodeAddr={machine.address} CPUs=2 RealMemory=8192" for machine in machines]
        (home / "slurm.conf").write_text(
            CONF.format(home=home, controller=machines[0].address, lines="\n".join(lines), patience=patience)
        )
        (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # without looking for one: /sys has none here
        (home / "munge.key").write_bytes(secrets.token_bytes(64))
        (home / "munge.key").chmod(0o400)
        (home / "state").mkdir()

    def start(self) -> None:
        """Start munge, the controller, and the daemon of each node."""
        first, paths = (
            self.machines[0],
            {name: self.home / f"munge.{name}" for name in ("socket", "pid", "seed", "log")},
        )
        munge = ["munged", "--foreground", "--force", "--key-file", str(self.home / "munge.key")]
        munge += ["--socket", str(paths["socket"]), "--pid-file", str(paths["pid"])]
        munge += ["--seed-file", str(paths["seed"]), "--log-file", str(paths["log"])]
        first.start(munge, self.home / "munged.out")
        wait_until(paths["socket"].exists, 30)
        first.start(["slurmctld", "-D"], self.home / "slurmctld.out", self.environ)
        for machine in self.machines:
            machine.start(["slurmd", "-D", "-N", machine.name], self.home / f"slurmd-{machine.name}.out", self.environ)
        wait_until(lambda: self.states() == ["idle"] * len(self.machines), 20)

    def run(self, *command: str) -> str:
        """What a command prints on the first machine."""
        done = subprocess.run(
            self.machines[0].command(command),
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self) -> list[str]:
        """The state of each node."""
        with contextlib.suppress(AssertionError):  # the controller is not there yet
            return self.run("sinfo", "-h", "-N", "-o", "%t").split()
        return []

    def submit(self, script: Path) -> str:
        """The number of the new job."""
        return self.run("sbatch", "--parsable", str(script)).strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows about a job: JobState, Restarts, ExitCode and more."""
        fields = self.run("scontrol", "show", "job", "--oneliner", number).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def wait_for_end(self, number: str, seconds: float = 600) -> dict[str, str]:
        """Wait for the end of a job that is not queued again."""
        wait_until(lambda: self.job(number)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), seconds, 1)
        return self.job(number)


@contextlib.contextmanager
def cluster(count: int, home: Path, patience: int = 300) -> Iterator[SlurmCluster]:
    """A cluster of so many nodes, which is gone after the block.

    Args:
        count: the number of nodes.
        home: an empty folder for its configuration and logs.
        patience: seconds after which Slurm gives up a node that does not answer.
    """
    with nodes.network(count, names="node{}") as machines:
        slurm = SlurmCluster(machines, home, patience)
        try:
            slurm.start()
            yield slurm
        finally:
            _end_steps(home)


def _end_steps(home: Path) -> None:
    """End the steps of jobs, which outlive the daemons."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            environ = (folder / "environ").read_bytes()
            if f"SLURM_CONF={home}/slurm.conf".encode() in environ and int(folder.name) != os.getpid():
                os.kill(int(folder.name), 9)
