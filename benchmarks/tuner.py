"""The tuner itself: its choice against every combination, with its price; and known delays beside a busy neighbour.

    python benchmarks/tuner.py grid JOB [--budget 72] [--rounds 10] [--folder DIR]
    python benchmarks/tuner.py delays JOB [--times 20] [--folder DIR]

JOB is C1b (a small CNN on a folder of JPEG images at 64), C3 (a 6-layer encoder of 384 on texts) or C5 (a CNN-LSTM on
windows), on generated data. `grid` lets the tuner decide with the budget of a run of one hour, then sets every
combination of layout, precision and compile beside its choice, in pairs. Regret is how many times faster the best of
them is, measured again once it has won; 1 if the choice is the best. `delays` slows one side of a real
decision down by a known share while another process computes without a pause, and counts the right verdicts.

With ONEDNN_MAX_CPU_ISA=AVX2 and ATEN_CPU_CAPABILITY=avx2 the same commands show a machine without short formats.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
HOUR = 3600.0
SWITCHED = ("channels_last", "precision", "compile")
JOBS = {
    "C1b": (
        "patterns",
        3000,
        """
name: c1b
task: image-classification
data: {{train: {folder}, validation: 0.1, image_size: 64, augment: {{flip: true}}}}
model: {{name: small-cnn, width: 32}}
train: {{epochs: {epochs}, batch_size: 128, optimizer: {{name: adamw, lr: 1e-3}}}}
""",
    ),
    "C3": (
        "reports",
        3000,
        """
name: c3
task: text-classification
data:
  {{train: {folder}/reports.csv, validation: 0.1, text: descripcion, labels: {{modo: 0.5, causa: 0.5}}, max_length: 128}}
model: {{name: encoder, layers: 6, width: 384}}
train: {{epochs: {epochs}, batch_size: 32, optimizer: {{name: adamw, lr: 3e-4}}}}
""",
    ),
    "C5": (
        "series",
        64000,
        """
name: c5
task: series-classification
data:
  {{train: {folder}/train.csv, time: time, group: machine, label: regime, window: 128, stride: 8, validation: 0.2,
   features: [vibration_x, vibration_y, temperature, pressure, current, flow]}}
model: {{name: cnn-lstm, cnn_channels: [64], kernel: 5, lstm_hidden: 128}}
train: {{epochs: {epochs}, batch_size: 256, optimizer: {{name: adamw, lr: 3e-3}}}}
""",
    ),
}


def main() -> int:
    """Measure, print, write; 0 if the goal is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measurement", choices=("data", "grid", "delays"))
    parser.add_argument("job", choices=tuple(JOBS))
    parser.add_argument("--budget", type=float, default=0.02 * HOUR, help="seconds that the tuner may take")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of each comparison of the grid")
    parser.add_argument("--times", type=int, default=20, help="decisions with known delays")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-tuner"))
    options = parser.parse_args()
    data = prepare_data(options.job, options.folder)
    if options.measurement == "data":
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        tuner = prepare_tuner(options.job, data, Path(scratch))
        result = measure_grid(tuner, options) if options.measurement == "grid" else measure_delays(tuner, options)
    report = {"job": options.job, **describe_machine(tuner), **result}
    path = options.folder / f"{options.measurement}-{options.job}-{report['cap'] or 'free'}.json"
    path.write_text(json.dumps(report, indent=1))
    print(f"written to {path}")
    return 0 if result["met"] else 1


def prepare_data(name: str, folder: Path) -> Path:
    """Write the data of a job if they are not there; returns their folder."""
    from jobs.samples import write as samples

    kind, size, _ = JOBS[name]
    target = folder / kind
    if not target.exists():
        target.mkdir(parents=True)
        samples.write(kind, target, size, 0)
    return target


def prepare_tuner(name: str, data: Path, scratch: Path) -> Any:
    """A tuner for a run of one hour."""
    from drivetrain.data.load_data import load
    from drivetrain.hardware.detect import detect
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models import inspection
    from drivetrain.models.build import build
    from drivetrain.plan import plan as plans
    from drivetrain.system.signals import Signals
    from drivetrain.training.assemble import Assembly
    from drivetrain.tuning import tuner_state
    from drivetrain.tuning.tuner import Tuner

    machine, signals = detect(scratch), Signals()
    path = scratch / "job.yaml"

    def make_tuner(epochs: int) -> Tuner:
        path.write_text(JOBS[name][2].format(folder=data, epochs=epochs))
        job = job_spec.load(path)
        dataset = load(job)
        network = build(job, dataset)
        facts = inspection.inspect_workload(dataset, network.module)
        plan = plans.resolve(job, machine, facts)
        inputs = Assembly(
            job, machine, plan, scratch, dataset, network, signals, facts, lambda text: print(f"  {text}", flush=True)
        )
        return Tuner(inputs, can_restart=True)

    first = make_tuner(1)
    _, total = tuner_state.predict_seconds(first.build(first.run.plan), first.run.total_steps)
    return make_tuner(max(1, round(HOUR / total)))


def measure_grid(tuner: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The tuner's choice against every combination."""
    from drivetrain import optimizations
    from drivetrain.system import timeout

    start = time.perf_counter()
    verdicts = tuner.tune(options.budget)
    seconds = time.perf_counter() - start
    plan = tuner.run.plan
    for name in verdicts.keys() - optimizations.list_process_settings():
        plan = plan.with_values({name: verdicts[name].value})
    if timeout.has_timed_out():
        print("  the compiler was broken off in this process; what is compiled now may fail for that", flush=True)
    choice = {name: plan.value(name) for name in SWITCHED}
    chosen_arm = warm_up(tuner, plan)
    rows = {}
    for values in list_combinations(tuner):
        if values != choice:
            ratios = time_pairs(chosen_arm, warm_up(tuner, set_values(plan, values)), options.rounds)
            rows[format_values(values)] = (statistics.median(ratios), values)
            print(
                f"  {format_values(values)}: {statistics.median(ratios):.3f}x the speed of {format_values(choice)}",
                flush=True,
            )
    best, values = max(rows.values(), key=lambda row: row[0], default=(1.0, choice))
    regret, low, high = 1.0, 1.0, 1.0
    if best > 1:
        ratios = time_pairs(chosen_arm, warm_up(tuner, set_values(plan, values)), 2 * options.rounds)
        regret, (low, high) = max(1.0, statistics.median(ratios)), compute_interval(ratios)
    print(
        f"{options.job}: takes {format_values(choice)}; regret {regret:.3f} [{low:.3f}-{high:.3f}]; "
        f"{seconds:.0f} s of {options.budget:.0f} s spent"
    )
    return {
        "choice": choice,
        "regret": regret,
        "interval": [low, high],
        "spent": seconds,
        "budget": options.budget,
        "against": {name: row[0] for name, row in rows.items()},
        "evidence": {n: r.text for n, r in verdicts.items()},
        "met": high <= 1.05 and seconds <= max(5.0, options.budget),
    }


def set_values(plan: Any, values: dict[str, Any]) -> Any:
    """The plan with a combination; texts that are compiled are cut into parts, as rows of them are not compiled."""
    from drivetrain.job.text import PART_TOKENS
    from drivetrain.optimizations import unpadding

    if values["compile"] and plan.value("unpadding") == unpadding.PACKED:
        plan = plan.with_values({"unpadding": PART_TOKENS})
    for name, value in values.items():
        plan = plan.with_values({name: value})
    return plan


def list_combinations(tuner: Any) -> Iterator[dict[str, Any]]:
    """Every combination that is possible here, also where it takes texts in parts."""
    from drivetrain import optimizations
    from drivetrain.job.text import PART_TOKENS

    job = tuner.run.job
    unpadded_job = job.model_copy(update={"optimize": {**job.optimize, "unpadding": PART_TOKENS}})
    values = []
    for name in SWITCHED:
        optimization = next(o for o in optimizations.every() if o.name == name)
        values.append(optimization.candidates(unpadded_job, tuner.run.hardware, tuner.facts))
    return (dict(zip(SWITCHED, combination, strict=True)) for combination in itertools.product(*values))


def warm_up(tuner: Any, plan: Any) -> Any:
    """Build an arm and run it on every batch once, so that all that is compiled has been compiled."""
    from drivetrain.tuning.variants import MAX_BATCHES

    arm = tuner.build(plan)
    arm.time_steps(MAX_BATCHES)
    return arm


def time_pairs(chosen_arm: Any, other_arm: Any, rounds: int) -> list[float]:
    """How many times faster the other is, by pairs of blocks over the same batches."""
    step_seconds = chosen_arm.time_steps(2) / 2
    count, ratios = max(1, round(0.4 / step_seconds)), []
    for number in range(rounds):
        sides = (chosen_arm, other_arm) if number % 2 == 0 else (other_arm, chosen_arm)
        times = {id(side): side.time_steps(count) for side in sides}
        ratios.append(times[id(chosen_arm)] / times[id(other_arm)])
    return ratios


def compute_interval(ratios: list[float]) -> tuple[float, float]:
    """95 % interval of the median, by bootstrap."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def format_values(values: dict[str, Any]) -> str:
    """`channels_last true, precision bf16, compile false`."""
    return ", ".join(f"{name} {str(value).lower()}" for name, value in values.items())


def measure_delays(tuner: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Decisions where one side is slowed down by a known share, a neighbour computing all the while."""
    are_right = []
    neighbours = [multiprocessing.Process(target=compute_forever, daemon=True) for _ in range(1)]
    for neighbour in neighbours:
        neighbour.start()
    try:
        for number in range(options.times):
            slower = number % 2 == 0
            are_right.append(decide_with_delay(tuner, slower) is not slower)
            print(
                f"  {number + 1}: the value is {'slower' if slower else 'faster'} by a quarter: "
                f"{'right' if are_right[-1] else 'WRONG'}",
                flush=True,
            )
    finally:
        for neighbour in neighbours:
            neighbour.kill()
    print(f"{options.job}: {sum(are_right)} of {len(are_right)} decided right, with a neighbour at work")
    return {"right": sum(are_right), "of": len(are_right), "met": all(are_right)}


def decide_with_delay(tuner: Any, slower: bool) -> bool:
    """Whether the tuner takes a value that does the same work, with a known delay on its side or on the incumbent's."""
    from drivetrain.tuning import tuner_state, variants
    from drivetrain.tuning.paired_timing import compare

    plan = tuner.run.plan
    incumbent, challenger = tuner.build(plan), tuner.build(plan)
    step_seconds, _ = tuner_state.predict_seconds(incumbent, 1)
    challenger.time_steps(5)
    delay_steps(challenger if slower else incumbent, 0.25)
    return variants.judge(compare(incumbent.time_steps, challenger.time_steps, step_seconds, 30.0), 0.0, HOUR).wins


def delay_steps(arm: Any, share: float) -> None:
    """Make every step of an arm longer by a share of itself."""
    plain_step = arm.step

    def step() -> tuple[float, float]:
        start = time.perf_counter()
        seconds: tuple[float, float] = plain_step()
        end = time.perf_counter() + share * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass
        return seconds

    arm.step = step


def compute_forever() -> None:
    """A neighbour that computes without a pause."""
    while True:
        sum(range(10000))


def describe_machine(tuner: Any) -> dict[str, Any]:
    """The machine, the date and the load, for the report."""
    cpu = tuner.run.hardware.cpu
    return {
        "cpu": cpu.model,
        "cpus": cpu.budget,
        "torch": tuner.run.hardware.torch.version,
        "cap": cpu.capped,
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
