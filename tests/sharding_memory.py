"""One process of several that writes how many bytes it holds: python -m tests.sharding_memory FOLDER."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from drivetrain.distributed.sharded_tensor import get_local_part
from drivetrain.system import interpreter
from tests import tiny


def size(tensors: Iterable[Tensor]) -> int:
    return sum(get_local_part(t).untyped_storage().nbytes() for t in tensors)


def main() -> None:
    folder = Path(sys.argv[1]) / os.environ["DRIVETRAIN_RANK"]
    folder.mkdir()
    job = tiny.job("ema: 0.9")
    run = tiny.assemble_run(folder, job, settings={"sharding": True, "fused_optimizer": True})
    tiny.losses(run, 2)
    assert run.ema is not None
    moments = [v for entry in run.optimizer.state.values() for name, v in entry.items() if name != "step"]
    parameters = dict(run.model.named_parameters())
    parameter_bytes = sum(p.numel() * p.element_size() for p in parameters.values())
    sizes = {"whole": parameter_bytes, "parameters": size(parameters.values()), "moments": size(moments)}
    sizes["average"] = size(value for name, value in run.ema.average.items() if name in parameters)
    run.ranks.barrier()
    run.ranks.leave()
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
