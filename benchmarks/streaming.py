"""Streamed shards beside the same shards on this disk, over a slow link, and of ten times the cache.

    python -m benchmarks.streaming throughput [--rounds 5]
    sudo python -m benchmarks.streaming link [--rate 200mbit]
    python -m benchmarks.streaming large [--megabytes 640]

throughput: the same training on shards of this disk and on those of an S3 server with a warm cache, epoch by epoch in turn.
link: an epoch of batches, without training, from a server behind a link of that rate: bytes a second beside what it carries.
large: data of ten times the cache, as tar and as Parquet; workers 0 to 2, 1 to 3 processes, a kill: the same batches, the largest
size of the cache, bytes fetched in an epoch, and the largest memory of a process.

The server is moto's, in a process of its own; link needs root and iproute2, for two network namespaces.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import csv, parquet

from drivetrain.data.load_data import load
from drivetrain.data.loader.batches import Batches
from drivetrain.data.sample_data import text as sample_texts
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.storage.object_store import ObjectStore
from drivetrain.storage.remote_address import parse
from tests import nodes
from tests.data.streaming import shards
from tests.object_store import KEY, SECRET, find_moto, moto
from tests.paths import ROOT
from tests.tiny import assemble_plain_run

IMAGES = """
name: images
task: image-classification
data: {{train: {train}, image_size: 32, stream: {{streams: {streams}, window: {window}, cache: {cache}}}}}
model: {{name: small-cnn}}
train: {{epochs: 100, batch_size: 64}}
"""
TEXTS = """
name: texts
task: text-classification
data: {{train: {train}, text: descripcion, labels: [modo, causa], stream: {{streams: {streams}, window: {window}, cache: {cache}}}}}
model: {{name: encoder, layers: 2, width: 64}}
train: {{epochs: 100, batch_size: 64}}
"""
SERVER_PORT = 5000
READER = [sys.executable, "-m", "tests.data.streaming.reader_process"]


def encode_image(number: int, side: int) -> bytes:
    """A JPEG with some structure, as photographs have."""
    generator = np.random.default_rng(number)
    coarse = generator.integers(0, 256, (side // 8, side // 8, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
    noisy = np.clip(np.asarray(image, np.int16) + generator.integers(-12, 12, (side, side, 3)), 0, 255)
    file = io.BytesIO()
    Image.fromarray(noisy.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def write_image_shards(folder: Path, count: int, rows: int, side: int, suffix: str) -> Path:
    """Write shards of images of two classes."""
    folder.mkdir(parents=True, exist_ok=True)
    images = [encode_image(number, side) for number in range(64)]
    for number in range(count):
        # A JPEG may be followed by other bytes: each is another file, without the time to encode it.
        row_images = [images[row % 64] + (number * rows + row).to_bytes(8) for row in range(rows)]
        labels = [("dark", "bright")[row % 2] for row in range(rows)]
        if suffix == ".parquet":
            table = pyarrow.table({"image": pyarrow.array(row_images, pyarrow.binary()), "label": labels})
            parquet.write_table(table, folder / f"{number:04}.parquet", compression="none")
            continue
        with tarfile.open(folder / f"{number:04}.tar", "w") as file:
            for row, (image, label) in enumerate(zip(row_images, labels, strict=True)):
                shards.add_member(file, f"{number:04}{row:05}.jpg", image)
                shards.add_member(file, f"{number:04}{row:05}.cls", label.encode())
    return folder


def write_text_shards(folder: Path, count: int, rows: int) -> Path:
    """Write shards of generated reports."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        sample_texts.write(Path(scratch), count * rows, 0)
        table = csv.read_csv(next(Path(scratch).glob("*.csv")))
    for number in range(count):
        parquet.write_table(table.slice(number * rows, rows), folder / f"{number:04}.parquet")
    return folder


def upload(folder: Path, name: str) -> str:
    """Put shards into the store; returns their address."""
    store = ObjectStore(parse(f"s3://bucket/{name}"))
    for file in sorted(folder.iterdir()):
        store.put(file.name, file.read_bytes())
    return f"s3://bucket/{name}"


def write_job(
    folder: Path, template: str, train: object, *, streams: int = 4, window: int = 2, cache: str = "20g"
) -> Job:
    """Write a job into a folder of its own, and load it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "t.yaml").write_text(template.format(train=train, streams=streams, window=window, cache=cache))
    return job_spec.load(folder / "t.yaml")


@contextmanager
def start_server(folder: Path) -> Iterator[str]:
    """An S3 server, and the variables by which this process and its children find it."""
    with moto() as address:
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        yield address


def make_trainer(job: Job, folder: Path, *, train: bool) -> Callable[[], float]:
    """A function that trains an epoch, or only reads its batches, and returns samples a second."""
    run = assemble_plain_run(job, folder)
    run.train_mode()

    def run_epoch() -> float:
        start, count = time.perf_counter(), 0
        for number, batch in enumerate(run.batches.epoch(run.counters.epoch)):
            count += len(batch)
            if train:
                run.set_learning_rates()
                run.step(run.preprocess(batch, 0), run.list_local_parts(run.batches.size(number)))
                run.counters.step += 1
        run.counters.epoch += 1
        return count / (time.perf_counter() - start)

    return run_epoch


def measure_throughput(options: argparse.Namespace, scratch: Path) -> None:
    """Train on local and on streamed shards in turn."""
    rows = {
        "images, tar": (IMAGES, write_image_shards(scratch / "tar", 24, 40, 160, ".tar")),
        "images, Parquet": (IMAGES, write_image_shards(scratch / "parquet", 24, 40, 160, ".parquet")),
        "texts, Parquet": (TEXTS, write_text_shards(scratch / "texts", 24, 100)),
    }
    with start_server(scratch):
        for name, (template, folder) in rows.items():
            address = upload(folder, folder.name)
            for train in (True, False):
                local, streamed = (
                    make_trainer(
                        write_job(scratch / f"{folder.name}-{train}-{part}", template, shards_address),
                        scratch / f"{folder.name}{train}{part}",
                        train=train,
                    )
                    for part, shards_address in (("local", folder), ("streamed", address))
                )
                local(), streamed()
                # In turn, and each time in the other order.
                pairs = []
                for number in range(options.rounds):
                    first, second = (local, streamed) if number % 2 else (streamed, local)
                    first_rate, second_rate = first(), second()
                    pairs.append((first_rate, second_rate) if number % 2 else (second_rate, first_rate))
                ratios = sorted(b / a for a, b in pairs)
                print(
                    f"{name}, {'training' if train else 'batches alone'}: "
                    f"{statistics.median(a for a, _ in pairs):,.0f} samples/s from this disk, "
                    f"{statistics.median(b for _, b in pairs):,.0f} from the warm cache: "
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}, {options.rounds} rounds)",
                    flush=True,
                )


def measure_link(options: argparse.Namespace, scratch: Path) -> None:
    """Read an epoch over a slow link."""
    for suffix in (".tar", ".parquet"):
        folder = write_image_shards(scratch / suffix[1:], 40, 160, 160, suffix)
        size = sum(file.stat().st_size for file in folder.iterdir())
        with nodes.network(2) as (store, reader):
            for node in (store, reader):
                limit = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", options.rate, "burst", "256kb"]
                subprocess.run(["ip", "netns", "exec", node.space, *limit, "latency", "50ms"], check=True)
            variables = {
                "AWS_ENDPOINT_URL": f"http://{store.address}:{SERVER_PORT}",
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "TORCHINDUCTOR_CACHE_DIR": str(scratch / f"cache-{suffix[1:]}"),
            }
            store.start([find_moto(), "-H", "0.0.0.0", "-p", str(SERVER_PORT)], scratch / "moto.log")
            command = [sys.executable, "-m", "benchmarks.streaming", "read", str(folder), options.rate]
            reader_process = subprocess.run(
                reader.command(command),
                env=os.environ | variables,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            print(
                f"{suffix}, {size / 1e6:.0f} MB: {reader_process.stdout.strip() or reader_process.stderr[-2000:]}",
                flush=True,
            )
            for server_process in store.started:
                server_process.kill()


def read_over_link(options: argparse.Namespace, scratch: Path) -> None:
    """Upload a folder, index it, then read an epoch through a cache of a third, all over the link."""
    folder, rate = Path(options.folder), float(options.rate.removesuffix("mbit")) * 1e6 / 8
    size = sum(file.stat().st_size for file in folder.iterdir())
    end = time.monotonic() + 60
    while True:
        try:
            request = ["curl", "-sf", "-X", "PUT", f"{os.environ['AWS_ENDPOINT_URL']}/bucket"]
            subprocess.run(request, check=True, capture_output=True)
            break
        except subprocess.CalledProcessError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    address = upload(folder, "shards")
    data = load(write_job(scratch / "job", IMAGES, address, streams=2, window=2, cache=f"{size // 3 // 1024}k"))
    batches = Batches(data.train, 64, 0, data.order)
    assert data.fetched is not None
    fetched_before = data.fetched.to_json()
    start, count = time.perf_counter(), 0
    for batch in batches.epoch(0):
        count += len(batch)
    seconds = time.perf_counter() - start
    fetched_bytes = data.fetched.to_json()["bytes"] - fetched_before["bytes"]
    print(
        f"{fetched_bytes / 1e6:.0f} MB in {seconds:.1f} s, {fetched_bytes / seconds / 1e6:.1f} MB/s of "
        f"{rate / 1e6:.1f}: {fetched_bytes / seconds / rate:.0%} of the link; {count / seconds:,.0f} images/s"
    )


def measure_large(options: argparse.Namespace, scratch: Path) -> None:
    """Read ten times the cache in many ways."""
    limit = options.megabytes * 10**6 // 10
    for suffix in [options.only] if options.only else [".tar", ".parquet"]:
        rows = 200
        first_folder = write_image_shards(scratch / f"one-{suffix[1:]}", 1, rows, 160, suffix)
        count = options.megabytes * 10**6 // sum(file.stat().st_size for file in first_folder.iterdir())
        folder = write_image_shards(scratch / suffix[1:], count, rows, 160, suffix)
        size = sum(file.stat().st_size for file in folder.iterdir())
        with start_server(scratch):
            address = upload(folder, suffix[1:])
            for file in folder.iterdir():
                file.unlink()
            spec = scratch / f"job-{suffix[1:]}"
            write_job(spec, IMAGES, address, streams=3, window=2, cache=f"{limit // 1024}k")
            cache = scratch / "cache/shards"
            print(f"{suffix}: {size / 1e6:.0f} MB in {count} shards, cache {limit / 1e6:.0f} MB", flush=True)
            with watch_cache_size(cache) as sizes:
                expected, memory, fetched = read_epoch(spec, 1, 0)
                print(
                    f"  1 process, 0 workers: {len(expected)} batches, {memory:.0f} MiB, "
                    f"fetched {fetched / size:.2f} of the data",
                    flush=True,
                )
                for processes, workers in ((1, 1), (1, 2), (2, 0), (3, 0), (3, 1)):
                    batches, memory, fetched = read_epoch(spec, processes, workers)
                    are_same = batches == expected
                    print(
                        f"  {processes} processes, {workers} workers: same samples in each batch: {are_same}, "
                        f"{memory:.0f} MiB, fetched {fetched / size:.2f} of the data",
                        flush=True,
                    )
                print(f"  killed and read on: {read_after_kill(spec, expected)}", flush=True)
            print(f"  largest size of the cache: {max(sizes) / 1e6:.1f} MB of {limit / 1e6:.1f}", flush=True)
            for file in cache.iterdir():
                file.unlink()


def read_epoch(spec: Path, processes: int, workers: int) -> tuple[list[str], float, int]:
    """The ids of each batch, the largest memory of a process in MiB, and the bytes that all of them fetched in the epoch."""
    shared = Path(tempfile.mkdtemp(dir=spec))
    children = [
        subprocess.Popen(
            ["/usr/bin/time", "-f", "%M", *READER, spec / "t.yaml", str(rank), str(processes), str(workers), "0", "0"],
            cwd=ROOT,
            env=os.environ | {"TOGETHER": str(shared)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    lines_by_rank, memory = [], 0.0
    with ThreadPoolExecutor(
        processes
    ) as pool:  # one that is not read would stop at a full pipe, and the others with it
        outputs = list(pool.map(subprocess.Popen.communicate, children))
    for process, (output, error) in zip(children, outputs, strict=True):
        assert process.returncode == 0, error
        memory = max(memory, int(error.split()[-1]) / 1024)
        lines_by_rank.append([line.split() for line in output.splitlines()])
    fetched = sum(int(file.read_text()) for file in shared.glob("fetched-*"))
    return [",".join(line[2] for line in lines) for lines in zip(*lines_by_rank, strict=True)], memory, fetched


def read_after_kill(spec: Path, expected: list[str]) -> str:
    """Kill a reader in mid-epoch, read on with other workers; whether all batches are as expected."""
    middle = len(expected) // 2
    first = subprocess.Popen(
        [*READER, spec / "t.yaml", "0", "1", "2", "0", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    first_batches = [first.stdout.readline().split()[2] for _ in range(middle)]
    first.kill()
    first.wait()
    second = subprocess.run(
        [*READER, spec / "t.yaml", "0", "1", "1", "0", str(middle)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return str(first_batches + [line.split()[2] for line in second.stdout.splitlines()] == expected)


@contextmanager
def watch_cache_size(folder: Path) -> Iterator[list[int]]:
    """Measure the bytes in the cache all the time; without indices and lock files."""
    sizes, is_over = [0], threading.Event()

    def measure_sizes() -> None:
        while not is_over.wait(0.02):
            total = 0
            for file in folder.glob("*"):
                try:
                    total += 0 if file.suffix == ".index" else file.stat().st_blocks * 512
                except FileNotFoundError:
                    continue
            sizes.append(total)

    thread = threading.Thread(target=measure_sizes)
    thread.start()
    try:
        yield sizes
    finally:
        is_over.set()
        thread.join()


def main() -> None:
    """Run a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    for name, measure in (
        ("throughput", measure_throughput),
        ("link", measure_link),
        ("large", measure_large),
        ("read", read_over_link),
    ):
        subparser = kinds.add_parser(name)
        subparser.set_defaults(work=measure)
        if name == "throughput":
            subparser.add_argument("--rounds", type=int, default=5)
        if name == "link":
            subparser.add_argument("--rate", default="200mbit")
        if name == "large":
            subparser.add_argument("--megabytes", type=int, default=640)
            subparser.add_argument("--only", choices=(".tar", ".parquet"))
        if name == "read":
            subparser.add_argument("folder")
            subparser.add_argument("rate")
    options = parser.parse_args()
    print(json.dumps({"cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="streaming-") as scratch:
        options.work(options, Path(scratch))


if __name__ == "__main__":
    main()
