"""Lost: errors of a GPU after which this process can compute nothing on it any more.

A checkpoint is never made after one: what the device holds cannot be trusted. The last one stays.
"""

from __future__ import annotations

from runtime.errors import DeviceError, PeerError
from runtime.system import torch_errors

WORDS = ("CUDA error", "CUDNN_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_EXECUTION_FAILED")
PEERS = ("NCCL error", "NCCL communicator was aborted", "ProcessGroupNCCL", "Gloo connectFullMesh")
"""What is said, often only where a result is read, when another process of the run is gone."""


def meaning(error: RuntimeError) -> RuntimeError | DeviceError | PeerError:
    """What to raise for an error of torch: a DeviceError if the GPU is lost, a PeerError if another process is."""
    text = str(error)
    if any(word in text for word in PEERS):
        return PeerError(
            f"another process of this run is lost: {text.splitlines()[0][:160]}",
            "all processes of a run",
            "run the same command again; it resumes from the last checkpoint; "
            "ranks/*/log.txt in the run folder says more",
        )
    if torch_errors.is_exhausted(error) or not any(word in text for word in WORDS):
        return error
    return DeviceError(
        f"the GPU has failed: {text.splitlines()[0][:200]}",
        "a GPU that answers; the last checkpoint is untouched",
        "look at `nvidia-smi` and the kernel's log for Xid errors, then run the same command again, on another GPU if "
        "this one is gone. An index beyond a table in code of your own looks alike: CUDA_LAUNCH_BLOCKING=1 shows where",
    )
