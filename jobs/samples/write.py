"""Writes the data of the example jobs into jobs/data; the same seed gives the same bytes with the same libraries.

python -m jobs.samples.write [NAME ...] [--size N]   `make samples` calls it, in the image where there is no torch
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

SIZES = {"audio": 1200, "patterns": 1200, "reports": 6000, "series": 64000, "table": 40000}
"""By example job, which also names the module that writes its data: sounds, images, texts, or rows."""
DATA = Path(__file__).parents[1] / "data"


def write(name: str, folder: Path, size: int, seed: int = 0) -> list[Path]:
    """Write the data of an example job into a folder; returns the files, in order."""
    files: list[Path] = import_module(f"jobs.samples.{name}").write(folder, size, seed)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the data of the example jobs into jobs/data.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SIZES)}; all if absent")
    parser.add_argument(
        "--size", type=int, help="sounds, images, texts or rows, at least 20; else what the job expects"
    )
    options = parser.parse_args()
    if not set(options.names) <= set(SIZES) or (options.size or 20) < 20:
        parser.error(f"names are {', '.join(SIZES)}, and a size is 20 or more")
    for name in options.names or SIZES:
        folder = DATA / name
        if folder.exists():
            print(f"{folder} is there already; remove it to have it written again")
            continue
        files = write(name, folder, options.size or SIZES[name])
        print(
            f"{folder}: {len(files):,} file{'s' * (len(files) > 1)}, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
