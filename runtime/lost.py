"""Lost: errors of a GPU after which this process can compute nothing on it any more.

A checkpoint is never made after one: what the device holds cannot be trusted. The last one stays.
"""

from __future__ import annotations

from runtime import memory
from runtime.errors import DeviceError

WORDS = ("CUDA error", "CUDNN_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_EXECUTION_FAILED", "NCCL error")


def meaning(error: RuntimeError) -> RuntimeError | DeviceError:
    """What to raise for an error of torch: a DeviceError if the GPU is lost, else the error itself."""
    text = str(error)
    if memory.is_exhausted(error) or not any(word in text for word in WORDS):
        return error
    return DeviceError(
        f"the GPU has failed: {text.splitlines()[0][:200]}",
        "a GPU that answers; the last checkpoint is untouched",
        "look at `nvidia-smi` and the kernel's log for Xid errors, then run the same command again, on another GPU if "
        "this one is gone. An index beyond a table in code of your own looks alike: CUDA_LAUNCH_BLOCKING=1 shows where",
    )
