"""Interprets torch's errors: out of memory, a failed GPU, a lost process.

After a GPU failure this process cannot use the GPU any more. No checkpoint is saved then, since the device's memory
cannot be trusted; the last one stays.
"""

from __future__ import annotations

import torch

from drivetrain.errors import DeviceError, OutOfMemory, PeerError

# torch.OutOfMemoryError is newer than the oldest supported torch.
_ERRORS: tuple[type[BaseException], ...] = (MemoryError, getattr(torch, "OutOfMemoryError", MemoryError))
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "CUDA out of memory",
    # Outside of torch's allocator: pinned memory, code that is loaded late, graphs, workspaces.
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # of the first product, whose workspace did not fit
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # usually an algorithm whose workspace did not fit
    "unable to find an engine to execute",  # cuDNN, if no algorithm's workspace fits (pytorch#108645)
)
_GPU_FAILED = ("CUDA error", "CUDA driver error", "CUDNN_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_EXECUTION_FAILED")
_PEER_GONE = ("NCCL error", "NCCL communicator was aborted", "ProcessGroupNCCL", "Gloo connectFullMesh")
"""Messages, often only raised where a result is read, when another process of the run is gone."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    return isinstance(error, _ERRORS) or (isinstance(error, RuntimeError) and any(w in str(error) for w in _NO_MEMORY))


def out_of_memory_error(error: BaseException, micro_batch: int = 1) -> OutOfMemory:
    """Return the error if there is nothing left to split."""
    return OutOfMemory(
        f"out of memory with micro-batch {micro_batch}: {str(error).splitlines()[0][:160]}",
        "a network and samples that fit",
        "raise limits.memory, or use a smaller network",
    )


def translate_error(error: RuntimeError) -> RuntimeError | DeviceError | PeerError:
    """Translate the error to raise for torch's: a DeviceError if the GPU is lost, a PeerError if another process is."""
    text = str(error)
    if any(phrase in text for phrase in _PEER_GONE):
        return PeerError(
            f"another process of this run died: {text.splitlines()[0][:160]}",
            "all processes of the run",
            "run the same command again; it resumes from the last checkpoint; "
            "ranks/*/log.txt in the run folder says more",
        )
    if is_out_of_memory(error) or not any(phrase in text for phrase in _GPU_FAILED):
        return error
    return DeviceError(
        f"the GPU has failed: {text.splitlines()[0][:200]}",
        "a GPU that answers; the last checkpoint is untouched",
        "look at `nvidia-smi` and the kernel's log for Xid errors, then run the same command again, on another GPU if "
        "this one is gone. An index out of range in your own code looks the same: CUDA_LAUNCH_BLOCKING=1 shows where",
    )
