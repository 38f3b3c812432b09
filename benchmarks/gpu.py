"""Half an hour on a GPU machine, row by row.

    python benchmarks/gpu.py OUT [--minutes 25] [--only PREFIX ...] [--smoke]

Every row runs in a process of its own with a time limit, and its figures are appended to OUT/rows.jsonl at once: a
machine that ends early loses one row. Rows that are in the file for this chip, driver and torch are skipped, so the same
command goes on, also on another machine of this kind that has the file; what has failed is tried again. A row is begun
if its whole limit is left of the minutes, else a shorter one. OUT/page.md is written anew after each row.
Needs torch for the chip and this repository's packages; no Docker. Lightning, transformers and pytest are used where
they are installed. `--smoke` tries all rows out on any machine, with networks and data so small that their figures
say nothing; its rows are copies of one process that has imported torch, since imports would take most of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT), str(BENCHMARKS)]

from gpu_page import write_page  # noqa: E402
from gpu_rows import list_rows  # noqa: E402

from benchmarks.rows_file import RowsFile  # noqa: E402
from drivetrain.hardware import gpu_selection  # noqa: E402
from drivetrain.hardware.detect import detect  # noqa: E402
from drivetrain.hardware.facts import Hardware  # noqa: E402

IMPORTED: tuple[str, ...] = (
    "torch._dynamo",
    "torch.profiler",
    "drivetrain.training.train",
    "drivetrain.plan.plan",
    "transformers.trainer",
)
IMPORTED += ("transformers.models.bert.modeling_bert", "lightning.pytorch")
"""What the rows of a trial import, if it is installed."""
PRINTED_FIGURES = (
    "samples_per_second",
    "real_tokens_per_second",
    "ms_per_step",
    "kernels_per_step",
    "same_bits",
    "missing",
)


def main() -> int:
    """Measure the rows that are not measured yet; returns 9 without a GPU, 1 if a row of a trial failed."""
    options = parse_arguments()
    machine = gpu_selection.select_gpus(detect(options.out))
    if machine.gpu is None and not options.smoke:
        reason = machine.gpu_trouble or "none was found"
        print(f"no GPU can be used here: {reason}; --smoke tries the script out", file=sys.stderr)
        return 9
    runner = RowRunner(options, describe_machine(machine))
    rows = [row for name, limit in list_rows() if (row := runner.run(name, limit))]
    return int(options.smoke and any("failed" in row for row in rows))


def describe_machine(machine: Hardware) -> dict[str, str]:
    """What must be the same for a figure to hold: chip, driver, torch."""
    from importlib.metadata import version

    gpu = machine.gpu
    return {"chip": gpu.name if gpu else "cpu", "driver": (gpu.driver if gpu else "") or "", "torch": version("torch")}


class RowRunner:
    """Runs rows and keeps their figures."""

    def __init__(self, options: argparse.Namespace, machine: dict[str, str]) -> None:
        self.options, self.start = options, time.monotonic()
        self.rows = RowsFile(options.out / "rows.jsonl", machine)

    def run(self, name: str, limit: int) -> dict[str, Any] | None:
        """Run a row and append it; None if it is measured already, not selected, or the time is over."""
        options = self.options
        if name in self.rows.measured or (options.only and not name.startswith(tuple(options.only))):
            return None
        seconds_left = 60 * options.minutes - (time.monotonic() - self.start)
        if seconds_left < limit:
            print(
                f"{name}: not begun, it may take {limit} s of the {max(0, seconds_left):.0f} s that are left",
                flush=True,
            )
            return None
        begin = time.monotonic()
        figures = (measure_in_copy if options.smoke else measure_in_process)(name, limit, options)
        row = self.rows.append(name, {"seconds": round(time.monotonic() - begin, 1), **figures})
        write_page(self.rows.read(), options.out / "page.md", is_trial=options.smoke)
        printed = {key: row[key] for key in (*PRINTED_FIGURES, "failed") if key in row}
        print(f"{time.monotonic() - self.start:5.0f} s  {name:32} {printed}", flush=True)
        return row


def measure_in_process(name: str, limit: int, options: argparse.Namespace) -> dict[str, Any]:
    """A row in a new process; `failed` says why it has no figures."""
    command = [sys.executable, str(BENCHMARKS / "gpu_arm.py"), name, str(options.folder), str(options.out)]
    # A session of its own, so that the trainer that a row has started ends with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        end_session(process.pid)
        process.communicate()
        return {"failed": f"{limit} s were not enough"}
    if process.returncode or not output.strip():
        return {"failed": " | ".join(errors.strip().splitlines()[-3:])[:400] or f"exit {process.returncode}"}
    figures: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return figures


def measure_in_copy(name: str, limit: int, options: argparse.Namespace) -> dict[str, Any]:
    """A row in a copy of this process, with its imports and one thread."""
    import_once()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, name, options))
    process.start()
    assert process.pid is not None
    sender.close()
    try:
        figures: dict[str, Any] = (
            json.loads(receiver.recv_bytes()) if receiver.poll(limit) else {"failed": f"{limit} s were not enough"}
        )
    except EOFError:
        figures = {"failed": "it has ended without an answer"}
    end_session(process.pid)
    process.join()
    return figures


@cache
def import_once() -> None:
    """Import what the rows of a trial need. No thread may be begun here: a copied process would wait for it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)


def _answer(pipe: Connection, name: str, options: argparse.Namespace) -> None:
    os.setsid()
    # What rows print is of no use in a trial, and their errors are sent.
    with (
        Path(os.devnull).open("w") as devnull,
        contextlib.redirect_stdout(devnull),
        contextlib.redirect_stderr(devnull),
    ):
        try:
            import gpu_arm

            figures = gpu_arm.measure_row(name, options)
        except BaseException:
            figures = {"failed": " | ".join(traceback.format_exc().strip().splitlines()[-3:])}
    pipe.send_bytes(json.dumps(figures).encode())
    pipe.close()
    os._exit(0)  # threads of torch and of TensorBoard are not waited for


def end_session(leader: int) -> None:
    """End a row with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def parse_arguments() -> argparse.Namespace:
    """The command line; the folders exist afterwards."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, help="where rows.jsonl, page.md and tests.log are written")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "drivetrain-gpu", help="for data")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--only", nargs="+", metavar="PREFIX", help="such as ours:bert or reference")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    options.out, options.folder = options.out.resolve(), options.folder.resolve()
    for folder in (options.out, options.folder):
        folder.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
