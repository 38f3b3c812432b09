"""The arguments of the commands that make data, job files and weights: sample, shard, init, convert."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from drivetrain.cli import csv_option
from drivetrain.job import JOBS

TASKS = tuple(task for task in JOBS if task != "custom")
"""Tasks whose data `init` can inspect; data of the remaining one comes from user code."""
Add = Callable[[str, str], argparse.ArgumentParser]


def add(add_command: Add) -> None:
    """Add the commands to the parser."""
    for add_arguments in (_add_sample, _add_shard, _add_init, _add_convert):
        add_arguments(add_command)


def _add_sample(add: Add) -> None:
    command = add("sample", "write the generated data that the example jobs train on")
    command.add_argument("kind", choices=("images", "texts", "series", "table"), help="kind of data")
    command.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    command.add_argument("--size", type=int, default=1200, help="number of images, texts or rows (default: 1200)")
    command.add_argument(
        "--seed", type=int, default=0, help="random seed; the same seed gives the same data (default: 0)"
    )


def _add_shard(add: Add) -> None:
    command = add("shard", "write a folder of images as shards, which data.stream reads while a run trains on them")
    command.add_argument("source", type=Path, metavar="DIR", help="a folder with one folder of images for each class")
    command.add_argument(
        "--to", required=True, metavar="PLACE", help="a folder, or s3://BUCKET/PATH, gs://..., az://..."
    )
    command.add_argument(
        "--format",
        choices=("tar", "parquet"),
        default="tar",
        help="tar as WebDataset has it, or Parquet with the columns image and label (default: tar)",
    )
    command.add_argument("--size", default="64m", metavar="SIZE", help="size of a shard (default: 64m)")
    command.add_argument("--seed", type=int, default=0, help="of the random order of the images (default: 0)")


def _add_init(add: Add) -> None:
    command = add("init", "draft a job file from your data")
    command.add_argument(
        "data", type=Path, metavar="DATA", help="folder of images, table (CSV, JSONL, Parquet) or .npz"
    )
    command.add_argument("--task", choices=TASKS, help="task of the job, if the guess is wrong")
    command.add_argument(
        *("--target", "--label"),
        action="append",
        default=[],
        metavar="COLUMN",
        help="column to predict; repeat it for several",
    )
    command.add_argument(
        "--text", action="append", default=[], metavar="COLUMN", help="column that holds the texts; twice for pairs"
    )
    help_text = "pretrained network to start from: a folder, a name on the hub, resnet18, or a run folder"
    command.add_argument("--pretrained", metavar="FOLDER|NAME", help=help_text)
    csv_option.add(command)
    command.add_argument(
        "--output", type=Path, metavar="FILE", help="job file to write (default: NAME.yaml, named after the data)"
    )


def _add_convert(add: Add) -> None:
    command = add("convert", "convert a pickle checkpoint to safetensors, in an isolated process")
    command.add_argument(
        "file", type=Path, metavar="FILE", help="checkpoint file: pytorch_model.bin, best_model.bin, *.pt"
    )
