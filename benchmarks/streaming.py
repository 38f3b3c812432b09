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
FETCHED_PORT = 5000
READER = [sys.executable, "-m", "tests.data.streaming.reader_process"]


def encoded(number: int, side: int) -> bytes:
    """A JPEG with some structure, as photographs have."""
    random = np.random.default_rng(number)
    coarse = random.integers(0, 256, (side // 8, side // 8, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
    noisy = np.clip(np.asarray(image, np.int16) + random.integers(-12, 12, (side, side, 3)), 0, 255)
    out = io.BytesIO()
    Image.fromarray(noisy.astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def image_shards(folder: Path, count: int, rows: int, side: int, suffix: str) -> Path:
    """Shards of images of two classes."""
    folder.mkdir(parents=True, exist_ok=True)
    known = [encoded(number, side) for number in range(64)]
    for number in range(count):
        # A JPEG may be followed by other bytes: each is another file, without the time to encode it.
        content = [known[row % 64] + (number * rows + row).to_bytes(8) for row in range(rows)]
        labels = [("dark", "bright")[row % 2] for row in range(rows)]
        if suffix == ".parquet":
            table = pyarrow.table({"image": pyarrow.array(content, pyarrow.binary()), "label": labels})
            parquet.write_table(table, folder / f"{number:04}.parquet", compression="none")
            continue
        with tarfile.open(folder / f"{number:04}.tar", "w") as file:
            for row, (image, label) in enumerate(zip(content, labels, strict=True)):
                shards.add_member(file, f"{number:04}{row:05}.jpg", image)
                shards.add_member(file, f"{number:04}{row:05}.cls", label.encode())
    return folder


def text_shards(folder: Path, count: int, rows: int) -> Path:
    """Shards of generated reports."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        sample_texts.write(Path(place), count * rows, 0)
        table = csv.read_csv(next(Path(place).glob("*.csv")))
    for number in range(count):
        parquet.write_table(table.slice(number * rows, rows), folder / f"{number:04}.parquet")
    return folder


def upload(folder: Path, name: str) -> str:
    """Put shards into the store; returns their address."""
    store = ObjectStore(parse(f"s3://bucket/{name}"))
    for file in sorted(folder.iterdir()):
        store.put(file.name, file.read_bytes())
    return f"s3://bucket/{name}"


def job(place: Path, form: str, train: object, *, streams: int = 4, window: int = 2, cache: str = "20g") -> Job:
    """A job in a file of its own folder."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "t.yaml").write_text(form.format(train=train, streams=streams, window=window, cache=cache))
    return job_spec.load(place / "t.yaml")


@contextmanager
def server(place: Path) -> Iterator[str]:
    """An S3 server, and the variables by which this process and its children find it."""
    with moto() as address:
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place / "cache")
        yield address


def trainer(asked: Job, folder: Path, *, train: bool) -> Callable[[], float]:
    """Trains one epoch, or only reads its batches; returns samples a second."""
    made = assemble_plain_run(asked, folder)
    made.train_mode()

    def epoch() -> float:
        start, count = time.perf_counter(), 0
        for number, batch in enumerate(made.batches.epoch(made.counters.epoch)):
            count += len(batch)
            if train:
                made.set_learning_rates()
                made.step(made.preprocess(batch, 0), made.list_local_parts(made.batches.size(number)))
                made.counters.step += 1
        made.counters.epoch += 1
        return count / (time.perf_counter() - start)

    return epoch


def throughput(given: argparse.Namespace, place: Path) -> None:
    """Train on local and on streamed shards in turn."""
    rows = {
        "images, tar": (IMAGES, image_shards(place / "tar", 24, 40, 160, ".tar")),
        "images, Parquet": (IMAGES, image_shards(place / "parquet", 24, 40, 160, ".parquet")),
        "texts, Parquet": (TEXTS, text_shards(place / "texts", 24, 100)),
    }
    with server(place):
        for name, (form, folder) in rows.items():
            address = upload(folder, folder.name)
            for train in (True, False):
                here, there = (
                    trainer(
                        job(place / f"{folder.name}-{train}-{part}", form, data),
                        place / f"{folder.name}{train}{part}",
                        train=train,
                    )
                    for part, data in (("here", folder), ("there", address))
                )
                here(), there()
                # In turn, and each time in the other order.
                pairs = []
                for number in range(given.rounds):
                    first, second = (here, there) if number % 2 else (there, here)
                    one, other = first(), second()
                    pairs.append((one, other) if number % 2 else (other, one))
                ratios = sorted(b / a for a, b in pairs)
                print(
                    f"{name}, {'training' if train else 'batches alone'}: "
                    f"{statistics.median(a for a, _ in pairs):,.0f} samples/s from this disk, "
                    f"{statistics.median(b for _, b in pairs):,.0f} from the warm cache: "
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}, {given.rounds} rounds)",
                    flush=True,
                )


def link(given: argparse.Namespace, place: Path) -> None:
    """Read an epoch over a slow link."""
    for suffix in (".tar", ".parquet"):
        folder = image_shards(place / suffix[1:], 40, 160, 160, suffix)
        size = sum(file.stat().st_size for file in folder.iterdir())
        with nodes.network(2) as (store, reader):
            for node in (store, reader):
                shape = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", given.rate, "burst", "256kb"]
                subprocess.run(["ip", "netns", "exec", node.space, *shape, "latency", "50ms"], check=True)
            variables = {
                "AWS_ENDPOINT_URL": f"http://{store.address}:{FETCHED_PORT}",
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "TORCHINDUCTOR_CACHE_DIR": str(place / f"cache-{suffix[1:]}"),
            }
            store.start([find_moto(), "-H", "0.0.0.0", "-p", str(FETCHED_PORT)], place / "moto.log")
            words = [sys.executable, "-m", "benchmarks.streaming", "read", str(folder), given.rate]
            done = subprocess.run(
                reader.command(words), env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, check=False
            )
            print(f"{suffix}, {size / 1e6:.0f} MB: {done.stdout.strip() or done.stderr[-2000:]}", flush=True)
            for process in store.started:
                process.kill()


def read(given: argparse.Namespace, place: Path) -> None:
    """Upload a folder, index it, then read an epoch through a cache of a third, all over the link."""
    folder, rate = Path(given.folder), float(given.rate.removesuffix("mbit")) * 1e6 / 8
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
    data = load(job(place / "job", IMAGES, address, streams=2, window=2, cache=f"{size // 3 // 1024}k"))
    batches = Batches(data.train, 64, 0, data.order)
    assert data.fetched is not None
    before = data.fetched.to_json()
    start, count = time.perf_counter(), 0
    for batch in batches.epoch(0):
        count += len(batch)
    spent = time.perf_counter() - start
    fetched = data.fetched.to_json()["bytes"] - before["bytes"]
    print(
        f"{fetched / 1e6:.0f} MB in {spent:.1f} s, {fetched / spent / 1e6:.1f} MB/s of {rate / 1e6:.1f}: "
        f"{fetched / spent / rate:.0%} of the link; {count / spent:,.0f} images/s"
    )


def large(given: argparse.Namespace, place: Path) -> None:
    """Read ten times the cache in many ways."""
    limit = given.megabytes * 10**6 // 10
    for suffix in [given.only] if given.only else [".tar", ".parquet"]:
        rows = 200
        one = image_shards(place / f"one-{suffix[1:]}", 1, rows, 160, suffix)
        count = given.megabytes * 10**6 // sum(file.stat().st_size for file in one.iterdir())
        folder = image_shards(place / suffix[1:], count, rows, 160, suffix)
        size = sum(file.stat().st_size for file in folder.iterdir())
        with server(place):
            address = upload(folder, suffix[1:])
            for file in folder.iterdir():
                file.unlink()
            spec = place / f"job-{suffix[1:]}"
            job(spec, IMAGES, address, streams=3, window=2, cache=f"{limit // 1024}k")
            cache = place / "cache/shards"
            print(f"{suffix}: {size / 1e6:.0f} MB in {count} shards, cache {limit / 1e6:.0f} MB", flush=True)
            with watched(cache) as sizes:
                whole, memory, fetched = epoch(spec, 1, 0)
                print(
                    f"  1 process, 0 workers: {len(whole)} batches, {memory:.0f} MiB, fetched {fetched / size:.2f} of the data",
                    flush=True,
                )
                for processes, workers in ((1, 1), (1, 2), (2, 0), (3, 0), (3, 1)):
                    found, memory, fetched = epoch(spec, processes, workers)
                    same = found == whole
                    print(
                        f"  {processes} processes, {workers} workers: same samples in each batch: {same}, {memory:.0f} MiB, "
                        f"fetched {fetched / size:.2f} of the data",
                        flush=True,
                    )
                print(f"  killed and read on: {killed(spec, whole)}", flush=True)
            print(f"  largest size of the cache: {max(sizes) / 1e6:.1f} MB of {limit / 1e6:.1f}", flush=True)
            for file in cache.iterdir():
                file.unlink()


def epoch(spec: Path, processes: int, workers: int) -> tuple[list[str], float, int]:
    """The ids of each batch, the largest memory of a process in MiB, and the bytes that all of them fetched in the epoch."""
    together = Path(tempfile.mkdtemp(dir=spec))
    started = [
        subprocess.Popen(
            ["/usr/bin/time", "-f", "%M", *READER, spec / "t.yaml", str(rank), str(processes), str(workers), "0", "0"],
            cwd=ROOT,
            env=os.environ | {"TOGETHER": str(together)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    parts, memory = [], 0.0
    with ThreadPoolExecutor(
        processes
    ) as pool:  # one that is not read would stop at a full pipe, and the others with it
        outputs = list(pool.map(subprocess.Popen.communicate, started))
    for process, (out, error) in zip(started, outputs, strict=True):
        assert process.returncode == 0, error
        memory = max(memory, int(error.split()[-1]) / 1024)
        parts.append([line.split() for line in out.splitlines()])
    fetched = sum(int(file.read_text()) for file in together.glob("fetched-*"))
    return [",".join(line[2] for line in lines) for lines in zip(*parts, strict=True)], memory, fetched


def killed(spec: Path, whole: list[str]) -> str:
    """Kill a reader in the middle of an epoch, and read the rest with another number of workers."""
    middle = len(whole) // 2
    first = subprocess.Popen(
        [*READER, spec / "t.yaml", "0", "1", "2", "0", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    seen = [first.stdout.readline().split()[2] for _ in range(middle)]
    first.kill()
    first.wait()
    rest = subprocess.run(
        [*READER, spec / "t.yaml", "0", "1", "1", "0", str(middle)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return str(seen + [line.split()[2] for line in rest.stdout.splitlines()] == whole)


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """The bytes in the cache, all the time; what is only indexed and locks are not in it."""
    sizes, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            total = 0
            for file in folder.glob("*"):
                try:
                    total += 0 if file.suffix == ".index" else file.stat().st_blocks * 512
                except FileNotFoundError:
                    continue
            sizes.append(total)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


def main() -> None:
    """Run a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    for name, work in (("throughput", throughput), ("link", link), ("large", large), ("read", read)):
        made = kinds.add_parser(name)
        made.set_defaults(work=work)
        if name == "throughput":
            made.add_argument("--rounds", type=int, default=5)
        if name == "link":
            made.add_argument("--rate", default="200mbit")
        if name == "large":
            made.add_argument("--megabytes", type=int, default=640)
            made.add_argument("--only", choices=(".tar", ".parquet"))
        if name == "read":
            made.add_argument("folder")
            made.add_argument("rate")
    given = parser.parse_args()
    print(json.dumps({"cpus": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}), file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="streaming-") as place:
        given.work(given, Path(place))


if __name__ == "__main__":
    main()
