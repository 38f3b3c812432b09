"""Field: who takes part in a row, how each is started, and the race itself."""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.contest import figures
from benchmarks.contest.figures import OURS, SOL
from benchmarks.contest.race import Contender, ContenderError, read_last_line
from benchmarks.contest.rows import Row
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware
from drivetrain.job_spec import load_job as job_spec
from drivetrain.plan import plan as plans
from drivetrain.plan.plan_table import describe_machine as machine_line
from drivetrain.system import child_process
from drivetrain.system.files import write_json
from drivetrain.system.signals import die_with_parent

PLAIN = "drivetrain --plain"
FORMS = {
    "tutorial loop": ("tutorial", "default"),
    "Lightning": ("lightning", "default"),
    "Hugging Face": ("huggingface", "default"),
    "Lightning, tuned": ("lightning", "tuned"),
    "Hugging Face, tuned": ("huggingface", "tuned"),
}
"""Peers: kind and form."""
GEMM = "gemm"
MIN_ROUNDS = 2
"""Of a row, however long they take: where a block is a whole run, six would take too long."""
MAX_TIME_FACTOR = 4
"""A row may take this many times its seconds until it has its smallest number of rounds."""
ContenderSpec = tuple[str, list[str], dict[str, str]]
"""Name, arguments of the command, environment."""


@dataclass
class Field:
    """The contenders of a row.

    Args:
        row: the workload.
        folder: where data, caches and logs go.
        smoke: with few samples.
        python: of the peers' environment; None to leave them out.
        report_progress: called with each line about the progress.
    """

    row: Row
    folder: Path
    smoke: bool
    python: str | None
    report_progress: Callable[[str], None]

    def __post_init__(self) -> None:
        # A cache of its own: what earlier runs of the product measured or decoded here must not help.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((self.folder / "cache").resolve())
        self.row.write_data(self.folder, self.smoke)
        self.long_job = self.row.write_job(self.folder, self.smoke, long=True)
        self.short_job = self.row.write_job(self.folder, self.smoke, long=False)
        self.machine = detect(self.folder)
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{self.row.name}-", dir=self.folder))
        self.precision = "fp32"

    def run_race(self, seconds: float, rounds: tuple[int, int], block: float, whole_runs: bool) -> dict[str, Any]:
        """Run the race and return its result, as it is written to JSON.

        Args:
            seconds: for all rounds together.
            rounds: fewest and most.
            block: seconds of a block.
            whole_runs: whether each contender is also run once from the command to the finished model.
        """
        start = time.monotonic()
        plan = self._measure_plan(self.scratch / "ours", plain=False)
        plan_seconds = time.monotonic() - start
        self.report_progress(f"{self.row.name}: plan settled in {plan_seconds:.0f} s")
        contenders, failed = self._start_contenders(plan, block)
        try:
            count = self._run_rounds(contenders, seconds, rounds)
        finally:
            for contender in contenders:
                contender.close()
        result = self._collect_result(contenders, plan) | {"rounds": count, "settled": plan_seconds}
        result["contenders"] |= {name: {"failed": reason} for name, reason in failed.items()}
        if whole_runs:
            self._time_whole_runs(result["contenders"])
        return result

    def _measure_plan(self, folder: Path, *, plain: bool) -> plans.Plan:
        """The plan that a long run would use, measured as it would be."""
        folder.mkdir()
        job = job_spec.load(self.long_job)
        rule_plan = plans.resolve(job, self.machine, plain=plain)
        write_json(folder / "hardware.json", self.machine.to_json())
        write_json(folder / "plan.json", rule_plan.to_json())
        command = [sys.executable, "-m", "benchmarks.contest.final_plan", str(folder), str(self.long_job)]
        log = folder.with_name(f"{folder.name}-plan.log")
        with log.open("wb") as file:
            process = subprocess.run(
                command,
                env=self._make_our_environment(rule_plan),
                stderr=file,
                check=False,
                preexec_fn=_end_with_parent(),
            )
        if process.returncode:
            raise SystemExit(f"{self.row.name}: no plan: {read_last_line(log)}")
        return plans.load(folder / "plan.json")

    def _start_contenders(self, plan: plans.Plan, block: float) -> tuple[list[Contender], dict[str, str]]:
        """Start the contenders; returns those that are ready, ours first, and the errors of the others."""
        plain = self._measure_plan(self.scratch / "plain", plain=True)
        options = ["--cached"] * self.row.is_frozen
        specs: list[ContenderSpec] = [
            (SOL, ["sol", str(self.short_job), "sol", *options], self._make_our_environment(plan)),
            (
                OURS,
                ["drivetrain", str(self.short_job if self.row.is_frozen else self.long_job), "ours", *options],
                self._make_our_environment(plan),
            ),
            (PLAIN, ["drivetrain", str(self.long_job), "plain"], self._make_our_environment(plain)),
            (GEMM, ["gemm", str(self.short_job), "gemm"], self._make_our_environment(plan)),
            *(
                (name, [kind, str(self.short_job), name], self._make_peer_environment())
                for name, (kind, _) in self._list_peers()
            ),
        ]
        contenders, failed = list[Contender](), dict[str, str]()
        # One after another: threads that wait for threads of others make warm steps ten times as long. SOL comes first,
        # its answer names the format in which the tuned peers compute.
        for spec in specs:
            contender = self._make_contender(*spec, block)
            try:
                contender.start()
                contenders.append(contender)
                self.precision = contender.answer.get("precision", self.precision)
            except ContenderError as error:
                contender.close()
                failed[contender.name] = str(error)
                self.report_progress(f"{self.row.name}: {error}")
        if {SOL, OURS, GEMM} & set(failed):
            raise SystemExit(f"{self.row.name}: {failed}")
        for contender in contenders:
            if "--cached" not in contender.command:
                contender.warm_up()
        return sorted(contenders, key=lambda contender: contender.name != OURS), failed

    def _make_contender(self, name: str, arguments: list[str], environment: dict[str, str], block: float) -> Contender:
        kind, job, folder_name, *options = arguments
        folder = self.scratch / folder_name
        folder.mkdir(exist_ok=True)
        is_ours = name in (OURS, PLAIN, SOL, GEMM)
        python = sys.executable if is_ours or kind == "tutorial" else str(self.python)
        command = [
            python,
            "-m",
            "benchmarks.contest.stand",
            kind,
            job,
            str(folder),
            *options,
            *self._list_form_options(name),
        ]
        return Contender(name, command, environment, self.scratch / f"{folder_name}.log", block)

    def _list_form_options(self, name: str) -> list[str]:
        tuned = FORMS.get(name, ("", ""))[1] == "tuned"
        return ["--tuned", "--precision", self.precision] if tuned else []

    def _list_peers(self) -> list[tuple[str, tuple[str, str]]]:
        return [(name, form) for name, form in FORMS.items() if self.python or form[0] == "tutorial"]

    def _run_rounds(self, contenders: list[Contender], seconds: float, rounds: tuple[int, int]) -> int:
        """Blocks in turn; who begins changes from round to round."""
        start, count, longest = time.monotonic(), 0, MAX_TIME_FACTOR * seconds
        while count < MIN_ROUNDS or (count < rounds[1] and time.monotonic() - start < longest):
            first = count % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                contender.run_block()
            count += 1
            longest = MAX_TIME_FACTOR * seconds if count < rounds[0] else seconds
        self.report_progress(f"{self.row.name}: {count} rounds in {time.monotonic() - start:.0f} s")
        return count

    def _collect_result(self, contenders: list[Contender], plan: plans.Plan) -> dict[str, Any]:
        by_name = {contender.name: contender for contender in contenders}
        gemm, sol = by_name.pop(GEMM), by_name.get(SOL)
        operations = sol.answer.get("operations", 0.0) + self.row.extra_flops if sol and not self.row.is_frozen else 0.0
        contender_figures = {}
        for name, contender in by_name.items():
            form = FORMS.get(name, ("", ""))[1]
            precision = (
                self.precision
                if form == "tuned" or name == SOL
                else plan.value("precision")
                if name == OURS
                else "fp32"
            )
            peak = gemm.answer["bfloat16" if precision == "bf16" else "float32"]
            contender_figures[name] = {
                "form": form,
                "rate": statistics.median(contender.rates),
                "rates": contender.rates,
                "peak": contender.peak_memory,
                "ratio": figures.compute_ratio(by_name[OURS].rates, contender.rates),
                "efficiency": statistics.median(contender.rates) * operations / peak,
            }
        return {
            "row": self.row.name,
            "title": self.row.title,
            "date": _today(),
            "machine": machine_line(self.machine),
            "cpu": self.machine.cpu.model,
            "torch": _get_torch_version(self.machine),
            "smoke": self.smoke,
            "texts": "text-" in self.row.spec,
            "precision": self.precision,
            "gemm": {k: gemm.answer[k] for k in ("float32", "bfloat16")},
            "plan": {row.name: row.value for row in plan.decisions if row.value not in (False, "off")},
            "reasons": {row.name: row.evidence or row.reason for row in plan.decisions},
            "contenders": contender_figures,
        }

    def race_whole_runs(self, rounds: int) -> dict[str, Any]:
        """Train the job by Drivetrain and each tuned trainer in turn, from the command to the finished model.

        Caches start empty in the first round, as they do for a person's first job, and stay for the others. Drivetrain's
        time ends with its `result.json`, after the model; that of the others with their process.
        """
        names = [OURS, *(name for name, (_, form) in self._list_peers() if form == "tuned")]
        if len(names) == 1:
            raise SystemExit("whole jobs are compared with the tuned trainers: `make benchmark` installs them")
        load = os.getloadavg()[0]
        self._read_precision()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((self.scratch / "cold").resolve())
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(rounds):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                runs[name].append(self._time_whole_run(name))
        facts = {"cpu": self.machine.cpu.model, "torch": _get_torch_version(self.machine), "load": load}
        return {"row": self.row.name, "title": self.row.title, "date": _today(), **facts, "runs": runs}

    def _read_precision(self) -> None:
        """Take over the format in which the loop by hand is faster here, for the tuned trainers."""
        contender = self._make_contender(
            SOL, ["sol", str(self.short_job), "sol"], child_process.build_environment({}), 1.0
        )
        try:
            contender.start()
            self.precision = contender.answer.get("precision", self.precision)
        finally:
            contender.close()

    def _time_whole_run(self, name: str) -> dict[str, float]:
        """Seconds from the command to the finished model, those to the end of the command, and the accuracy."""
        start, begin = time.monotonic(), time.time()
        model_seconds = None
        if name in (OURS, PLAIN):
            accuracy, written_at = self._train_ours(name)
            model_seconds = written_at - begin
        else:
            accuracy = self._train_peer(name)
        seconds = time.monotonic() - start
        run = {"seconds": model_seconds or seconds, "command_seconds": seconds, "accuracy": accuracy}
        self.report_progress(f"{self.row.name}: {name}: {run['seconds']:.1f} s to the model, accuracy {accuracy:.3f}")
        return run

    def _time_whole_runs(self, contenders: dict[str, Any]) -> None:
        """Run each contender once from the command to the finished model, with caches that start empty."""
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((self.scratch / "cold").resolve())
        for name, contender in contenders.items():
            if name != SOL and "failed" not in contender:
                run = self._time_whole_run(name)
                contender |= {"whole": run["command_seconds"], "accuracy": run["accuracy"]}

    def _train_ours(self, name: str) -> tuple[float, float]:
        """The accuracy, and the moment at which the model was finished."""
        runs = self.scratch / f"runs {name}"
        shutil.rmtree(runs, ignore_errors=True)
        command = [sys.executable, "-m", "drivetrain", "train", str(self.short_job), "--runs", str(runs), "--new"]
        self._run_command([*command, *["--plain"] * (name == PLAIN)], self._make_peer_environment(), name)
        path = next(runs.glob("*/result.json"))
        metrics = json.loads(path.read_text())["last"]
        accuracy = statistics.mean(value for key, value in metrics.items() if key.endswith("/accuracy"))
        return accuracy, path.stat().st_mtime

    def _train_peer(self, name: str) -> float:
        command = self._make_contender(name, [FORMS[name][0], str(self.short_job), name], {}, 1.0).command
        output = self._run_command([*command, "--whole"], self._make_peer_environment(), name)
        return float(json.loads(output.splitlines()[-1])["accuracy"])

    def _run_command(self, command: list[str], environment: dict[str, str], name: str) -> str:
        log = self.scratch / f"{name}-whole.log"
        with log.open("wb") as file:
            process = subprocess.run(
                command,
                env=environment,
                stderr=file,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                preexec_fn=_end_with_parent(),
            )
        if process.returncode:
            raise SystemExit(f"{self.row.name}: {name} ended with {process.returncode}: {read_last_line(log)}")
        return process.stdout

    def _make_our_environment(self, plan: plans.Plan) -> dict[str, str]:
        return child_process.build_environment(plan.environment(self.machine))

    def _make_peer_environment(self) -> dict[str, str]:
        return child_process.build_environment({})


def _end_with_parent() -> Callable[[], None]:
    """In a child: end with this process, so that a measurement that is broken off leaves nothing behind."""
    return functools.partial(die_with_parent, os.getpid())


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _get_torch_version(machine: Hardware) -> str | None:
    return machine.torch.version if machine.torch else None
