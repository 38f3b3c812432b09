"""A run resumes with another number of processes: the same batches, every sample once, the same losses."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from drivetrain.distributed.batch_sharding import BatchSharding, BatchShare, digest_batch, hash_samples
from drivetrain.distributed.ranks import Ranks
from tests import ranks_start
from tests.parts_driver import BATCH, EPOCHS, KILLED, SAMPLES
from tests.supervisor.tiny_run import read_rows

STEPS = EPOCHS * -(-SAMPLES // BATCH)
SIZES = ((2, 5), (1, 10), (3, 16), (2, -1))
"""Processes of each attempt, and the step before which all of them are killed: three times in the first epoch."""


def train_in_attempts(
    folder: Path, sizes: Sequence[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> dict[int, list[int]]:
    """Read the sample ids of each step in the last attempt that reached it."""
    ids_by_step: dict[int, list[int]] = {}
    for attempt, (count, last) in enumerate(sizes):
        monkeypatch.setenv("ATTEMPT", str(attempt))
        command = [sys.executable, "-m", "tests.parts_driver", str(folder), str(last)]
        codes, outputs = ranks_start.wait_for_ranks(command, count)
        assert codes == [0 if last < 0 else KILLED] * count, "\n".join(outputs)
        homes = [folder, *(folder / "ranks" / str(rank) for rank in range(1, count))]
        notes = [
            [json.loads(line) for line in (home / f"trained-{attempt}.jsonl").read_text().splitlines()]
            for home in homes
        ]
        for step_notes in zip(*notes, strict=True):
            assert len({note["step"] for note in step_notes}) == 1
            batch_ids = [i for note in step_notes for i in note["ids"]]
            # Of a batch that is too small to be cut each process computes all.
            ids_by_step[step_notes[0]["step"]] = (
                batch_ids if len(step_notes[0]["ids"]) != SAMPLES % BATCH else step_notes[0]["ids"]
            )
    return ids_by_step


@pytest.mark.nightly
def test_other_numbers_of_processes_train_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without BatchNorm and dropout, which go by the share of a process."""
    alone = train_in_attempts(tmp_path / "alone", [(1, -1)], monkeypatch)
    changed = train_in_attempts(tmp_path / "changed", SIZES, monkeypatch)
    assert changed == alone
    per_epoch = STEPS // EPOCHS
    for epoch in range(EPOCHS):
        epoch_ids = [i for step in range(epoch * per_epoch, (epoch + 1) * per_epoch) for i in changed[step]]
        assert sorted(epoch_ids) == list(range(SAMPLES))
    one, two = read_rows(tmp_path / "alone"), read_rows(tmp_path / "changed")
    assert [(row["step"], row["epoch"], sorted(row)) for row in one] == [
        (row["step"], row["epoch"], sorted(row)) for row in two
    ]
    digests = [[row["batch"] for row in metric_rows if "train/loss" in row] for metric_rows in (one, two)]
    assert digests[0] == digests[1] == [digest_batch([hash_samples(np.array(changed[step]))]) for step in range(STEPS)]
    # The network is in float64, what is counted in an evaluation in float32.
    for name, rounding in (("train/loss", 1e-9), ("validation/loss", 1e-6)):
        first, second = ([row[name] for row in metric_rows if name in row] for metric_rows in (one, two))
        assert len(first) == (STEPS if name == "train/loss" else EPOCHS)
        np.testing.assert_allclose(second, first, rtol=rounding)
        assert first[-1] < first[0], "it learns"


def test_digest_is_that_of_the_samples_however_they_are_shared() -> None:
    ids = np.random.default_rng(0).permutation(50_000)[:256].astype(np.int64)
    full_digest = digest_batch([hash_samples(ids)])
    assert len(full_digest) == 12
    for cuts in ([], [1], [100, 200], list(range(1, 256))):
        parts = np.split(ids, cuts)
        assert digest_batch([hash_samples(part) for part in parts]) == full_digest
    assert digest_batch([hash_samples(ids)] * 3, is_replicated=True) == full_digest
    assert digest_batch([hash_samples(ids[::-1])]) == full_digest
    changed, twice = ids.copy(), ids.copy()
    changed[7], twice[7] = 50_000, ids[8]
    other_digests = [
        digest_batch([hash_samples(other)]) for other in (changed, twice, ids[1:], np.append(ids, ids[:1]), ids[:0])
    ]
    assert len({full_digest, *other_digests}) == 6


@pytest.mark.parametrize("batch", [5, 13])
@pytest.mark.parametrize("samples", [1, 4, 5, 9, 12, 13])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_shares_make_up_the_batch_or_are_all_of_it(samples: int, count: int, batch: int) -> None:
    shares = [BatchSharding(Ranks(rank, count), batch) for rank in range(count)]
    is_cut = count > 1 and samples >= count * (2 if batch >= 2 * count else 1)
    assert [share.is_replicated(samples) for share in shares] == [
        not is_cut and samples < 2 if count == 1 else not is_cut
    ] * count
    ids = np.concatenate([share.select_local(np.arange(samples)) for share in shares])
    assert ids.tolist() == list(range(samples)) * (1 if is_cut else count)
    expected = BatchShare(samples, 1 / count) if is_cut or (count == 1 and samples > 1) else BatchShare(samples * count)
    assert [share.share(samples, 0) for share in shares] == [expected] * count
