"""Several machines train one network: network namespaces stand for them, each with folders of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import nodes
from tests.messages import says
from tests.supervisor.tiny_run import command, have_same_weights, read_rows, train
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(nodes.MISSING), reason=nodes.MISSING)
PORT = 29400


class Cluster:
    """The same job on several machines that share no files."""

    def __init__(self, machines: Sequence[nodes.Node], job: Path, folder: Path) -> None:
        self.machines = machines
        self.homes = [folder / machine.name for machine in machines]
        for home in self.homes:
            home.mkdir()
            for file in (job, job.parent / "images.npz"):
                shutil.copy(file, home)
        self.spec = job.name

    def start(self, *options: str, last: Sequence[str] = ()) -> list[subprocess.Popen[bytes]]:
        """Train on all machines; the last one gets more options."""
        meet = {"MASTER_ADDR": self.machines[0].address, "MASTER_PORT": str(PORT)}
        processes = []
        for number, (machine, home) in enumerate(zip(self.machines, self.homes, strict=True)):
            arguments = [*options, *(last if number == len(self.homes) - 1 else ())]
            variables = {"RANK": str(number), "WORLD_SIZE": str(len(self.homes)), **meet}
            processes.append(machine.start(command(home / self.spec, *arguments), home / "log", variables))
        return processes

    def codes(self, *options: str, last: Sequence[str] = ()) -> list[int]:
        """The exit codes of all machines."""
        return [process.wait(120) for process in self.start(*options, last=last)]

    def logs(self) -> list[str]:
        """Return the output of each machine in the last attempt."""
        return [(home / "log").read_text() for home in self.homes]


def listeners(process: int) -> set[str]:
    """List the addresses with listeners in the network of a process, in hex as in the kernel's table."""
    addresses = set()
    for name in ("tcp", "tcp6"):
        lines = Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
        addresses |= {row[1].split(":")[0] for row in map(str.split, lines) if row[3] == "0A"}
    return addresses


def test_two_machines_give_the_bits_of_two_processes_and_others_are_refused(
    job: Path,
    tmp_path: Path,
) -> None:
    assert train(job, "--set", "limits.processes=2").returncode == 0
    with nodes.network(2) as machines:
        cluster = Cluster(machines, job, tmp_path)
        started = cluster.start()
        wait_until(lambda: "epoch 1/4  step 1/" in cluster.logs()[0])
        assert listeners(started[0].pid) == {"01004D0A"}, "10.77.0.1 alone"
        assert [process.wait(120) for process in started] == [0, 0], cluster.logs()
        first = cluster.homes[0] / "runs" / "tiny-001"
        assert have_same_weights(job.parent / "runs" / "tiny-001", first)
        assert read_rows(job.parent / "runs" / "tiny-001") == read_rows(first)
        assert not (cluster.homes[1] / "runs" / "tiny-001").exists()

        assert cluster.codes("--new", last=["--set", "train.seed=5"]) == [2, 2]
        for log in cluster.logs():
            assert says(log, "rank-node-node1-another", 1, "train.seed", 5)
        data = (cluster.homes[1] / "images.npz").read_bytes()
        (cluster.homes[1] / "images.npz").write_bytes(data + b"\0" * 20)  # a zip file may have more behind it
        assert cluster.codes("--new") == [3, 3]
        for log in cluster.logs():
            assert says(log, "data-leader-machine-rank", 1)
            assert says(log, "has-other-content", "images.npz")
