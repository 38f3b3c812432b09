"""The table that keeps everyone honest: the same jobs by drivetrain, by other trainers, and by hand, measured in turn.

    python benchmarks/peers.py [ROW ...] [--smoke] [--steady] [--whole ROUNDS] [--peers PYTHON] [--folder DIR]

Rows C1 to C6 are trainings, C7 is the start-up. Contenders are live processes that do blocks of steps in turn (those
that wait are stopped), so a noisy neighbour hits all; a figure is the median of the ratios of blocks of one round, with
the interval that holds the true median with 95 %. Drivetrain is what `train` runs: its plan, loader, loop, records. The
other trainers live in an environment of their own (`make benchmark` makes it), each as its documentation shows it and as an expert would
tune it; without that environment they are left out. Every row leaves ROW.json; the table is of all rows that are there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.contest import figures, startup  # noqa: E402
from benchmarks.contest.field import Field  # noqa: E402
from benchmarks.contest.race import ContenderError  # noqa: E402
from benchmarks.contest.rows import ROWS  # noqa: E402

PEERS = ROOT / ".venv-peers" / "bin" / "python"


def main() -> int:
    """Measure the rows, and write the table of all that are measured."""
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    peer_python = None if options.alone else str(options.peers)
    if peer_python and not Path(peer_python).exists():
        print(
            f"other trainers: {peer_python} is not there, so Lightning and Hugging Face are left out; "
            "`make benchmark` installs them"
        )
        peer_python = None
    if options.whole:
        return race_whole_runs(options, peer_python)
    for name in [] if options.table else options.rows or [*ROWS, startup.NAME]:
        if name == startup.NAME:
            result = startup.measure_startup(3 if options.smoke else 7, options.folder)
        else:
            field = Field(ROWS[name], options.folder, options.smoke, peer_python, report_progress)
            rounds, block = ((2, 2), 0.2) if options.smoke else ((6, 15), options.block)
            try:
                result = field.run_race(
                    options.seconds, rounds, block, whole_runs=not (options.smoke or options.steady)
                )
            except ContenderError as error:
                raise SystemExit(str(error)) from None
            shutil.rmtree(field.scratch)
        (options.folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(write_table(options.folder))
    return 0


def race_whole_runs(options: argparse.Namespace, peer_python: str | None) -> int:
    """Train the rows' whole jobs in turn by Drivetrain and the tuned trainers, and print their table."""
    path = options.folder / "whole.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in options.rows or ROWS:
        field = Field(ROWS[name], options.folder, options.smoke, peer_python, report_progress)
        results[name] = field.race_whole_runs(options.whole)
        shutil.rmtree(field.scratch)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(figures.format_whole_runs(list(results.values())))
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=parse_row, metavar="ROW", help="C1 C1b ... C7; all if absent")
    parser.add_argument("--smoke", action="store_true", help="few samples, two rounds: whether it runs, not how fast")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="for the rounds of a row; 6 rounds, or as many as fit into four times that",
    )
    parser.add_argument("--block", type=float, default=1.0, help="seconds of a block of steps")
    parser.add_argument("--peers", type=Path, default=PEERS, help="Python of the other trainers' environment")
    parser.add_argument("--alone", action="store_true", help="without Lightning and Hugging Face")
    parser.add_argument("--steady", action="store_true", help="without the runs from the command to the finished model")
    parser.add_argument(
        "--whole",
        type=int,
        metavar="ROUNDS",
        help="only whole jobs, from the command to the model, so many times in turn",
    )
    parser.add_argument("--table", action="store_true", help="measure nothing, only print the table of what is there")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "peers")
    return parser.parse_args()


def parse_row(name: str) -> str:
    """A row by its name."""
    if name not in (*ROWS, startup.NAME):
        raise argparse.ArgumentTypeError(f"no row {name}; there are {', '.join((*ROWS, startup.NAME))}")
    return name


def write_table(folder: Path) -> str:
    """The whole table as Markdown, also left in peers.md beside peers.json."""
    results = {name: json.loads(path.read_text()) for name in ROWS if (path := folder / f"{name}.json").exists()}
    text = ""
    if results:
        first_result = next(iter(results.values()))
        text = f"{first_result['cpu']}, {first_result['machine']}; torch {first_result['torch']}\n\n"
        text += f"{figures.format_summary(list(results.values()))}\n\n"
        text += "\n\n".join(figures.format_row(result) for result in results.values()) + "\n"
    startup_file = folder / f"{startup.NAME}.json"
    if startup_file.exists():
        results[startup.NAME] = json.loads(startup_file.read_text())
        text += f"\n{startup.format_result(results[startup.NAME])}\n"
    (folder / "peers.md").write_text(text, encoding="utf-8")
    (folder / "peers.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return text


def report_progress(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
