"""One process that reads the batches of an epoch: python -m tests.data.streaming.reader_process JOB RANK COUNT WORKERS EPOCH START

Prints a digest of each batch, or of this process's part of it. With TOGETHER=FOLDER the processes go batch by batch, as those of a
training do, and each leaves there how many bytes it has fetched.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import sys
import time
from pathlib import Path

from drivetrain.data.dataset import Batch
from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.distributed.batch_parts import BatchParts
from drivetrain.distributed.ranks import Ranks
from drivetrain.errors import DrivetrainError
from drivetrain.job_spec import load_job as job_spec


def digest(batch: Batch) -> str:
    """Ids, pixels or tokens, and targets."""
    hasher = hashlib.sha256(batch.ids.tobytes())
    for tensor in (*batch.inputs, *batch.targets.values()):
        hasher.update(tensor.numpy().tobytes())
    return hasher.hexdigest()[:16]


class Barrier:
    """Several processes that wait for each other after every batch."""

    def __init__(self, folder: Path, rank: int, count: int) -> None:
        self.folder, self.rank, self.number = folder, rank, 0
        self.form = struct.Struct(f"{count}q")
        file = os.open(folder / "steps", os.O_RDWR | os.O_CREAT)
        os.truncate(file, self.form.size)
        self.steps = mmap.mmap(file, self.form.size)
        self.wait()

    def wait(self) -> None:
        """Until the others have come as far."""
        self.number += 1
        struct.pack_into("q", self.steps, 8 * self.rank, self.number)
        while min(self.form.unpack(self.steps[:])) < self.number:
            time.sleep(0.001)


def main() -> int:
    path, *numbers = sys.argv[1:7]
    rank, count, workers, epoch, start = map(int, numbers)
    pause = float(sys.argv[7]) if len(sys.argv) > 7 else 0.0
    try:
        job = job_spec.load(Path(path))
        data = load(job)
        batches = Batches(data.train, job.train.batch, job.train.seed, data.order)
        batches.workers, batches.select_local = (
            workers,
            BatchParts(Ranks(rank, count), count, job.train.batch).select_own_samples,
        )
        before = data.fetched.bytes if data.fetched else 0
        together = Barrier(Path(os.environ["TOGETHER"]), rank, count) if "TOGETHER" in os.environ else None
        for number, batch in enumerate(batches.epoch(epoch, start), start):
            print(number, digest(batch), ",".join(map(str, batch.ids.tolist())), flush=True)
            time.sleep(pause)
            if together:
                together.wait()
        if together and data.fetched:
            (together.folder / f"fetched-{rank}").write_text(str(data.fetched.bytes - before))
    except DrivetrainError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
