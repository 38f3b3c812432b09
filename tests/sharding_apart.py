"""One process of two that do not see the same folders: python -m tests.sharding_apart FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.system import interpreter
from drivetrain.training.saver import SaverTogether
from tests import tiny


def main() -> None:
    rank = os.environ["DRIVETRAIN_RANK"]
    folder = Path(sys.argv[1]) / rank
    folder.mkdir()
    run = tiny.assemble_run(folder, tiny.job(), settings={"sharding": True})
    if rank == "1":
        plain_is_dir = Path.is_dir
        Path.is_dir = lambda path: ".tmp-" not in path.name and plain_is_dir(path)  # type: ignore[method-assign, assignment]
    try:
        SaverTogether(run).save_final()
    except StorageError as error:
        print(error)
    run.ranks.barrier()
    assert not list((Path(sys.argv[1]) / "0" / "checkpoints").glob(".*"))
    run.ranks.leave()


if __name__ == "__main__":
    main()
    interpreter.exit_process(0)
