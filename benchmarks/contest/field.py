"""Field: who takes part in a row, how each is started, and the race itself."""

from __future__ import annotations

import functools
import json
import os
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
from benchmarks.contest.race import Contender, Failed, last_words
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
FEWEST = 2
"""Rounds of a row however long they take: where a block is a whole run, six would take too long."""
LONG = 4
"""So many times its seconds may a row take until it has the fewest rounds that are wanted."""
Maker = tuple[str, list[str], dict[str, str]]
"""Name, words of the command, environment."""


@dataclass
class Field:
    """The contenders of a row.

    Args:
        row: the workload.
        folder: where data, caches and logs go.
        smoke: with few samples.
        python: of the peers' environment; None to leave them out.
        tell: where progress goes.
    """

    row: Row
    folder: Path
    smoke: bool
    python: str | None
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        # A cache of its own: what earlier runs of the product measured or decoded here must not help.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((self.folder / "cache").resolve())
        self.row.make(self.folder, self.smoke)
        self.long = self.row.job(self.folder, self.smoke, long=True)
        self.short = self.row.job(self.folder, self.smoke, long=False)
        self.machine = detect(self.folder)
        self.scratch = Path(tempfile.mkdtemp(prefix=f"{self.row.name}-", dir=self.folder))
        self.precision = "fp32"

    def raced(self, seconds: float, rounds: tuple[int, int], block: float, whole: bool) -> dict[str, Any]:
        """Race, and the result as JSON.

        Args:
            seconds: for all rounds together.
            rounds: fewest and most.
            block: seconds of a block.
            whole: whether each is also run once from the command to the finished model.
        """
        start = time.monotonic()
        plan = self._settled(self.scratch / "ours", plain=False)
        settled = time.monotonic() - start
        self.tell(f"{self.row.name}: plan settled in {settled:.0f} s")
        contenders, failed = self._standing(plan, block)
        try:
            count = self._rounds(contenders, seconds, rounds)
        finally:
            for contender in contenders:
                contender.close()
        result = self._result(contenders, plan) | {"rounds": count, "settled": settled}
        result["contenders"] |= {name: {"failed": why} for name, why in failed.items()}
        if whole:
            self._whole(result["contenders"])
        return result

    def _settled(self, folder: Path, *, plain: bool) -> plans.Plan:
        """The plan that a long run would use, measured as it would be."""
        folder.mkdir()
        job = job_spec.load(self.long)
        first = plans.resolve(job, self.machine, plain=plain)
        write_json(folder / "hardware.json", self.machine.to_json())
        write_json(folder / "plan.json", first.to_json())
        command = [sys.executable, "-m", "drivetrain.tuning.processes.final_plan", str(folder), str(self.long)]
        log = folder.with_name(f"{folder.name}-plan.log")
        with log.open("wb") as file:
            done = subprocess.run(command, env=self._ours(first), stderr=file, check=False, preexec_fn=_bound())
        if done.returncode:
            raise SystemExit(f"{self.row.name}: no plan: {last_words(log)}")
        return plans.load(folder / "plan.json")

    def _standing(self, plan: plans.Plan, block: float) -> tuple[list[Contender], dict[str, str]]:
        """Contenders that stand, ours first, and why others do not."""
        plain = self._settled(self.scratch / "plain", plain=True)
        cached = ["--cached"] * self.row.frozen
        makers: list[Maker] = [
            (SOL, ["sol", str(self.short), "sol", *cached], self._ours(plan)),
            (
                OURS,
                ["drivetrain", str(self.short if self.row.frozen else self.long), "ours", *cached],
                self._ours(plan),
            ),
            (PLAIN, ["drivetrain", str(self.long), "plain"], self._ours(plain)),
            (GEMM, ["gemm", str(self.short), "gemm"], self._ours(plan)),
            *((name, [kind, str(self.short), name], self._theirs()) for name, (kind, _) in self._peers()),
        ]
        made, failed = list[Contender](), dict[str, str]()
        # One after another: threads that wait for threads of others make warm steps ten times as long. SOL comes first,
        # it tells in which format the tuned peers compute.
        for maker in makers:
            contender = self._contender(*maker, block)
            try:
                contender.stand()
                made.append(contender)
                self.precision = contender.told.get("precision", self.precision)
            except Failed as why:
                contender.close()
                failed[contender.name] = str(why)
                self.tell(f"{self.row.name}: {why}")
        if {SOL, OURS, GEMM} & set(failed):
            raise SystemExit(f"{self.row.name}: {failed}")
        for contender in made:
            if "--cached" not in contender.command:
                contender.warm_up()
        return sorted(made, key=lambda one: one.name != OURS), failed

    def _contender(self, name: str, words: list[str], environment: dict[str, str], block: float) -> Contender:
        kind, job, place, *more = words
        folder = self.scratch / place
        folder.mkdir(exist_ok=True)
        own = name in (OURS, PLAIN, SOL, GEMM)
        python = sys.executable if own or kind == "tutorial" else str(self.python)
        command = [python, "-m", "benchmarks.contest.stand", kind, job, str(folder), *more, *self._form(name)]
        return Contender(name, command, environment, self.scratch / f"{place}.log", block)

    def _form(self, name: str) -> list[str]:
        tuned = FORMS.get(name, ("", ""))[1] == "tuned"
        return ["--tuned", "--precision", self.precision] if tuned else []

    def _peers(self) -> list[tuple[str, tuple[str, str]]]:
        return [(name, form) for name, form in FORMS.items() if self.python or form[0] == "tutorial"]

    def _rounds(self, contenders: list[Contender], seconds: float, rounds: tuple[int, int]) -> int:
        """Blocks in turn; who begins changes from round to round."""
        start, count, longest = time.monotonic(), 0, LONG * seconds
        while count < FEWEST or (count < rounds[1] and time.monotonic() - start < longest):
            first = count % len(contenders)
            for contender in (*contenders[first:], *contenders[:first]):
                contender.block()
            count += 1
            longest = LONG * seconds if count < rounds[0] else seconds
        self.tell(f"{self.row.name}: {count} rounds in {time.monotonic() - start:.0f} s")
        return count

    def _result(self, contenders: list[Contender], plan: plans.Plan) -> dict[str, Any]:
        by_name = {one.name: one for one in contenders}
        gemm, sol = by_name.pop(GEMM), by_name.get(SOL)
        needed = sol.told.get("operations", 0.0) + self.row.extra_flops if sol and not self.row.frozen else 0.0
        found = {}
        for name, one in by_name.items():
            form = FORMS.get(name, ("", ""))[1]
            used = (
                self.precision
                if form == "tuned" or name == SOL
                else plan.value("precision")
                if name == OURS
                else "fp32"
            )
            peak = gemm.told["bfloat16" if used == "bf16" else "float32"]
            found[name] = {
                "form": form,
                "rate": statistics.median(one.rates),
                "rates": one.rates,
                "peak": one.peak,
                "ratio": figures.ratio(by_name[OURS].rates, one.rates),
                "efficiency": statistics.median(one.rates) * needed / peak,
            }
        return {
            "row": self.row.name,
            "title": self.row.title,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine_line(self.machine),
            "cpu": self.machine.cpu.model,
            "torch": _torch(self.machine),
            "smoke": self.smoke,
            "texts": "text-" in self.row.spec,
            "precision": self.precision,
            "gemm": {k: gemm.told[k] for k in ("float32", "bfloat16")},
            "plan": {row.name: row.value for row in plan.decisions if row.value not in (False, "off")},
            "reasons": {row.name: row.evidence or row.reason for row in plan.decisions},
            "contenders": found,
        }

    def _whole(self, contenders: dict[str, Any]) -> None:
        """Each once from the command to the finished model, with caches that start empty."""
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((self.scratch / "cold").resolve())
        for name, found in contenders.items():
            if name == SOL or "failed" in found:
                continue
            start = time.monotonic()
            accuracy = self._trained(name) if name in (OURS, PLAIN) else self._peer(name)
            found |= {"whole": time.monotonic() - start, "accuracy": accuracy}
            self.tell(f"{self.row.name}: {name}: {found['whole']:.1f} s from command to model, accuracy {accuracy:.3f}")

    def _trained(self, name: str) -> float:
        runs = self.scratch / f"runs {name}"
        command = [sys.executable, "-m", "drivetrain", "train", str(self.short), "--runs", str(runs), "--new"]
        self._run([*command, *["--plain"] * (name == PLAIN)], self._theirs(), name)
        last = json.loads(next(runs.glob("*/result.json")).read_text())["last"]
        return statistics.mean(value for key, value in last.items() if key.endswith("/accuracy"))

    def _peer(self, name: str) -> float:
        command = self._contender(name, [FORMS[name][0], str(self.short), name], {}, 1.0).command
        return float(json.loads(self._run([*command, "--whole"], self._theirs(), name).splitlines()[-1])["accuracy"])

    def _run(self, command: list[str], environment: dict[str, str], name: str) -> str:
        log = self.scratch / f"{name}-whole.log"
        with log.open("wb") as file:
            done = subprocess.run(
                command,
                env=environment,
                stderr=file,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                preexec_fn=_bound(),
            )
        if done.returncode:
            raise SystemExit(f"{self.row.name}: {name} ended with {done.returncode}: {last_words(log)}")
        return done.stdout

    def _ours(self, plan: plans.Plan) -> dict[str, str]:
        return child_process.build_environment(plan.environment(self.machine))

    def _theirs(self) -> dict[str, str]:
        return child_process.build_environment({})


def _bound() -> Callable[[], None]:
    """In a child: end with this process, so that a measurement that is broken off leaves nothing behind."""
    return functools.partial(die_with_parent, os.getpid())


def _torch(machine: Hardware) -> str | None:
    return machine.torch.version if machine.torch else None
