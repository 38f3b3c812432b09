"""The model behind `drivetrain plan --on`, beside what was recorded on other machines. Prints the tables of its page.

    python -m benchmarks.elsewhere FOLDER [--cpu] [--gpu]

The GPU's tables only count operations, so they need no idle machine; those of the CPU time steps here first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "runtime"), str(ROOT), str(ROOT / "benchmarks")]

import gpu_reference  # noqa: E402
from gpu_rows import make_job  # noqa: E402

from benchmarks.contest.rows import ROWS  # noqa: E402
from drivetrain.data.load_data import load  # noqa: E402
from drivetrain.hardware.detect import detect  # noqa: E402
from drivetrain.job_spec.spec_source import SpecSource  # noqa: E402
from drivetrain.plan import plan as plans  # noqa: E402
from drivetrain.system.files import read_json  # noqa: E402
from drivetrain.tuning import measuring_child  # noqa: E402
from drivetrain.tuning.elsewhere.machine_catalog import CatalogMachine, Rates, find_machines  # noqa: E402
from drivetrain.tuning.elsewhere.machine_estimate import (  # noqa: E402
    KERNEL_SECONDS,
    LAUNCH_SECONDS,
    REACHED_SHARE,
    Measured,
    StepWork,
)
from drivetrain.tuning.processes.count_work import count_step_work  # noqa: E402

PUBLIC_RATES = (
    ("resnet50", "a100", 2470, "NVIDIA DeepLearningExamples, ResNet-50 v1.5, AMP"),
    ("resnet50", "a100", 1582, "Lambda deep-learning-benchmark, fp16"),
    ("resnet50", "v100", 1200, "NVIDIA DeepLearningExamples, ResNet-50 v1.5, AMP"),
    ("resnet50", "v100", 833, "Lambda deep-learning-benchmark, fp16"),
    ("resnet50", "h100", 2791, "Lambda deep-learning-benchmark, fp16"),
    ("resnet50", "rtx4090", 1301, "Lambda deep-learning-benchmark, fp16"),
    ("bert-384", "h100", 870, "Lambda, BERT-base SQuAD, fp16"),
    ("bert-384", "a100", 443, "Lambda, BERT-base SQuAD, fp16"),
    ("bert-384", "rtx4090", 297, "Lambda, BERT-base SQuAD, fp16"),
    ("bert-384", "v100", 189, "Lambda, BERT-base SQuAD, fp16"),
)
"""Samples a second that others have published, each GPU-bound."""
RECORDED_PAGE = ROOT / "docs/measurements/gpu-nvidia-h100-80gb-hbm3-2026-11-22.json"
RECORDED_CPU_PAGE = ROOT / "docs/measurements/peers-2026-11-24-avx2.json"
CPU_ROWS = ("C1", "C1b", "C2", "C3", "C5", "C6")
GPU_BATCHES = {"mlp": 256, "cnn-lstm": 256, "resnet18": 128, "resnet50": 64, "bert": 32}


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.cpu:
        print_cpu_table(options.folder)
    if options.gpu:
        print_gpu_tables(options.folder)
    return 0


def print_row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def print_cpu_table(folder: Path) -> None:
    """Samples a second of the recorded processor, modelled from steps on this one."""
    page, this_machine = read_json(RECORDED_CPU_PAGE), detect(folder)
    print_row("job", "here", "modelled", "recorded", "error")
    print_row(*["---"] * 5)
    for name in CPU_ROWS:
        row, recorded = ROWS[name], page[name]
        row.write_data(folder, smoke=False)
        spec = row.write_job(folder, smoke=False, long=True)
        source = SpecSource(spec, []).read()
        job = source.load()
        plan = plans.resolve(job, this_machine)
        try:
            figures = measuring_child.measure_result("count_work", source, plan, this_machine)
        except measuring_child.MeasurementEnded:
            continue
        measured = Measured.from_json(figures, this_machine.cpu.budget)
        gemm = recorded["gemm"]
        other = Rates(matmul=gemm["float32"], low_matmul=gemm["bfloat16"], bandwidth=measured.rates.bandwidth)
        share = measured.compute_seconds("fp32", other) / measured.compute_seconds("fp32", measured.rates)
        units = row.batch
        if recorded["texts"]:
            lengths = load(job).train.lengths  # type: ignore[attr-defined]
            units *= sum(lengths) / len(lengths)
        rate = recorded["contenders"]["drivetrain"]["rate"]
        modelled = units / (measured.fp32_step * share)
        error = f"{100 * (rate / modelled - 1):+.0f} %"
        print_row(f"{name}, {row.title}", *(f"{v:,.0f}" for v in (units / measured.times.step, modelled, rate)), error)


def print_gpu_tables(folder: Path) -> None:
    """Published rates of GPU-bound trainings, and the steps of the recorded H100, which waited for its host."""
    works = {name: count_work(folder, name, batch) for name, batch in GPU_BATCHES.items()}
    works["bert-384"] = count_work(folder, "bert", 32, tokens=384)
    batches = {**GPU_BATCHES, "bert-384": 32}
    print_row("network", "card", "modelled samples/s", "published", "error of the time", "source")
    print_row(*["---"] * 6)
    for name, card, rate, source in PUBLIC_RATES:
        (target,) = find_machines(card)
        modelled = batches[name] / compute_seconds(works[name], target)
        print_row(name, card, f"{modelled:,.0f}", f"{rate:,}", f"{100 * (rate / modelled - 1):+.0f} %", source)
    (target,), page = find_machines("h100"), read_json(RECORDED_PAGE)["rows"]
    print()
    print_row(
        "network",
        "operations",
        "modelled: kernels",
        "launches",
        "recorded step",
        "error",
        "memory, modelled",
        "recorded",
    )
    print_row(*["---"] * 8)
    for name in GPU_BATCHES:
        work = works[name]
        recorded = page["bert-base" if name == "bert" else name]["plan"]
        kernels, launches, step = compute_seconds(work, target), work.launches * LAUNCH_SECONDS, recorded["median_step"]
        times = (f"{1000 * seconds:.2f} ms" for seconds in (kernels, launches, step))
        memory = (f"{size / 2**30:.2f} GiB" for size in (work.weight_bytes + work.saved_bytes, recorded["peak"]))
        print_row(name, f"{work.launches:.0f}", *times, f"{100 * (max(kernels, launches) / step - 1):+.0f} %", *memory)


def compute_seconds(work: StepWork, target: CatalogMachine) -> float:
    return work.compute_seconds(target.rates.scale(REACHED_SHARE), low_precision=True, least_seconds=KERNEL_SECONDS)


def count_work(folder: Path, name: str, batch: int, tokens: int = 256) -> StepWork:
    """The work of a step of a network of `gpu.py` in bf16; texts all have so many tokens."""
    folder = folder / f"{name}-{tokens}"
    folder.mkdir(exist_ok=True)
    job = make_job(name, folder, trial=False)
    values = ["optimize.precision=bf16", "optimize.unpadding=off", f"train.batch_size={batch}"]
    if name == "bert":
        fill_texts(job, tokens)
        values.append(f"data.max_length={tokens}")
    with tempfile.TemporaryDirectory() as run:
        return count_step_work(gpu_reference.assemble_run(job, Path(run), values))


def fill_texts(job: Path, tokens: int) -> None:
    """Repeat the words of each text until it is as long as the longest."""
    path = job.parent / "texts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["text"] = " ".join((row["text"].split() * tokens)[:tokens])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
