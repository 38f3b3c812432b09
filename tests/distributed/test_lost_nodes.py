"""Nodes that are killed and started again by an engine: the same bits, every sample once; and a save that takes long."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_double import Nodes
from tests.paths import ROOT
from tests.supervisor.tiny_run import command, have_same_weights, read_rows
from tests.waiting import wait_until

KILL_WAIT = 5.0
"""Seconds between the last SIGTERM and SIGKILL; half of what the slow save takes."""


@pytest.fixture
def nodes(job: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    cluster = Nodes(job, tmp_path / "nodes", 2, request.param)
    yield cluster
    cluster.end()


@pytest.mark.parametrize("nodes", [["--set", "train.epochs=4000", "--set", "checkpoint.every=10m"]], indirect=True)
def test_nobody_ends_before_the_leader_has_saved(nodes: Nodes) -> None:
    """A scheduler that kills all as soon as one has ended: the leader's save takes twice as long as it then waits."""
    nodes.start({0: {"FAULT": "last checkpoint:2:slow"}})
    wait_until(lambda: sum(1 for _ in nodes.ledger()) > 20)
    nodes.signal(signal.SIGTERM)
    wait_until(lambda: any(node.poll() for node in nodes.running))
    begin = time.monotonic()
    while any(node.poll() is None for node in nodes.running):
        nodes.signal(signal.SIGTERM)
        if time.monotonic() - begin > KILL_WAIT:
            nodes.signal(signal.SIGKILL)
        time.sleep(0.2)
    assert nodes.codes(1) == [75, 75], nodes.log()
    assert "fault: slow" in nodes.log()
    last = read_rows(nodes.run)[-1]["step"]
    manifest = json.loads((nodes.run / "checkpoints" / f"step-{last}" / "MANIFEST.json").read_text())
    assert manifest["files"]


LONG = ["--set", "checkpoint.every=50 steps", "--set"]


@pytest.mark.parametrize(
    ("nodes", "kills", "spread"),
    [
        pytest.param([*LONG, "train.epochs=60"], 2, 8.0, id="kills2", marks=pytest.mark.nightly),
        pytest.param([*LONG, "train.epochs=2000"], 20, 20.0, id="kills20", marks=pytest.mark.nightly),
    ],
    indirect=["nodes"],
)
def test_a_killed_node_costs_no_bit(nodes: Nodes, job: Path, kills: int, spread: float) -> None:
    """A node is killed at random moments, also while it starts or saves; every ended node is started again, like a pod."""
    generator, recoveries = random.Random(kills), list[float]()
    nodes.start()
    killed_at, rows_before, kill_count, next_kill_at = 0.0, 0, 0, time.monotonic() + generator.uniform(0, spread)
    while nodes.running[0].poll() != 0:
        nodes.restart()
        if killed_at and len(list(nodes.ledger())) > rows_before + 2:
            recoveries.append(time.monotonic() - killed_at)
            killed_at = 0.0
        if kill_count < kills and time.monotonic() > next_kill_at:
            nodes.kill(generator.randrange(2))
            killed_at, rows_before, kill_count = time.monotonic(), len(list(nodes.ledger())), kill_count + 1
            next_kill_at = killed_at + generator.uniform(0, spread)
        time.sleep(0.05)
    assert kill_count == kills, "the run ended before"
    print(f"{kills} kills; of {len(recoveries)}, training went on after {', '.join(f'{s:.0f}' for s in recoveries)} s")
    reference = job.parent / "reference"
    options = [*nodes.options, "--set", "limits.processes=2", "--runs", str(reference)]
    subprocess.run(command(job, *options), cwd=ROOT, capture_output=True, check=True, timeout=1200)
    assert have_same_weights(reference / "tiny-001", nodes.run)
    assert read_rows(reference / "tiny-001") == read_rows(nodes.run)
    _check_ledger(nodes)


def _check_ledger(nodes: Nodes) -> None:
    """Whatever was trained again was trained on the same samples, and each sample once an epoch."""
    parts: dict[tuple[int, int], list[list[int] | None]] = {}
    for number in range(2):
        for row in nodes.ledger(number):
            ids_by_node = parts.setdefault((row["epoch"], row["batch"]), [None, None])
            assert ids_by_node[number] in (None, row["ids"])
            ids_by_node[number] = row["ids"]
    epochs: dict[int, list[int]] = {}
    for (epoch, _), halves in parts.items():
        epochs.setdefault(epoch, []).extend(i for ids in halves for i in ids or ())
    assert all(sorted(ids) == list(range(120)) for ids in epochs.values())
