"""Records that TensorBoard's own reader and writer agree with."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

from drivetrain.tracking.tensorboard import compute_masked_checksum, write_record


@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 4097])
def test_checksum_and_record_are_tensorboards(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert compute_masked_checksum(data) == masked_crc32c(data)
    ours, theirs = io.BytesIO(), io.BytesIO()
    write_record(ours, data)
    RecordWriter(theirs).write(data)
    assert ours.getvalue() == theirs.getvalue()


def test_a_full_disk_is_an_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with pytest.raises(OSError, match="No space"), open("/dev/full", "wb", buffering=0) as file:
        write_record(file, b"lost")
