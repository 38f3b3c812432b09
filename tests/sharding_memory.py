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
    asked = tiny.job("ema: 0.9")
    made = tiny.assembled(folder, asked, settings={"sharding": True, "fused_optimizer": True})
    tiny.losses(made, 2)
    assert made.ema is not None
    moments = [v for entry in made.optimizer.state.values() for name, v in entry.items() if name != "step"]
    trained = dict(made.model.named_parameters())
    whole = sum(p.numel() * p.element_size() for p in trained.values())
    found = {"whole": whole, "parameters": size(trained.values()), "moments": size(moments)}
    found["average"] = size(value for name, value in made.ema.average.items() if name in trained)
    made.ranks.barrier()
    made.ranks.leave()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
