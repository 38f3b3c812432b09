"""Prints information about torch and its libraries as JSON, as a child of the doctor; imports torch."""

from __future__ import annotations

import json
import os


def collect_torch_facts() -> dict[str, object]:
    """List threads, instruction set, GPUs, and each OpenMP and BLAS library with version and threads."""
    import torch
    from threadpoolctl import threadpool_info

    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "instructions": str(torch.backends.cpu.get_cpu_capability()),
        "cpus": os.cpu_count(),
        "gpus": torch.cuda.device_count(),
        "pools": [
            {key: pool[key] for key in ("user_api", "internal_api", "prefix", "version", "num_threads")}
            for pool in threadpool_info()
        ],
    }


if __name__ == "__main__":
    print(json.dumps(collect_torch_facts()))
