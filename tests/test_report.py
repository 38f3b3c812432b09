"""The report of a run: what is in it, and that no broken file, foreign text or size keeps it from being written."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from runtime import plan as plans
from runtime import spec
from runtime.errors import CheckpointError
from runtime.folder import spec_text
from runtime.hardware import load
from runtime.job import Job
from runtime.report import write
from runtime.report.__main__ import main

ROOT = Path(__file__).parent.parent
MACHINES = ROOT / "tests" / "machines"
STEPS, EVERY = 540, 45
EVIL = "<script src='https://evil.example/x.js'>alert(1)</script>|`*[x](http://evil.example)"


def rows(path: Path, items: Any) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")


def metrics(steps: int = STEPS) -> list[dict[str, float]]:
    """Losses that fall with noise, a one-cycle rate, and an evaluation now and then."""
    noise, found = random.Random(0), []
    for step in range(1, steps + 1):
        part = step / steps
        loss = 2.3 * math.exp(-6 * part) * noise.uniform(0.6, 1.5) + 0.004
        rate = 3e-3 * (part / 0.3 if part < 0.3 else 0.5 + 0.5 * math.cos(math.pi * (part - 0.3) / 0.7))
        found.append({"step": step, "epoch": step * 12 // steps, "train/loss": loss, "lr": rate,
                      "grad_norm": 3 * noise.random() * math.exp(-2 * part)})  # fmt: skip
        if step % EVERY == 0:
            accuracy = 0.986 - 0.7 * math.exp(-9 * part)
            found.append({"step": step, "epoch": step * 12 // steps, "validation/loss": 0.06 + math.exp(-6 * part),
                          "validation/accuracy": accuracy, "validation/f1": accuracy - 0.004})  # fmt: skip
    return found


def telemetry(seconds: int = 41) -> list[dict[str, float | None]]:
    noise = random.Random(1)
    return [
        {"seconds": s + 0.5, "step": s * STEPS // seconds, "samples_per_second": noise.gauss(520, 25),
         "input_wait": 0.02 + 0.03 * noise.random(), "rss": 4.2e8 + 9e7 * (1 - math.exp(-s / 5)),
         "memory_used": 5e8 + 1e8 * (1 - math.exp(-s / 5)), "memory_limit": 4 * 2**30,
         "cpu_percent": noise.gauss(185, 6), "throttled_seconds": 12 + s / 50}
        for s in range(seconds)
    ]  # fmt: skip


def confusion(classes: list[str]) -> dict[str, Any]:
    noise, count = random.Random(2), len(classes)
    matrix = [[0] * count for _ in classes]
    for truth in range(count):
        for _ in range(36):
            matrix[truth][truth if noise.random() < 0.94 else noise.randrange(count)] += 1
    return {"classes": classes, "matrix": matrix}


def result(classes: list[str]) -> dict[str, Any]:
    return {
        "steps": STEPS, "epochs": 12, "seconds": 41.6, "samples_per_second": 518.3,
        "best": {"metric": "validation/accuracy", "value": 0.9861, "step": 495, "epoch": 11},
        "last": {"validation/loss": 0.0642, "validation/accuracy": 0.9833, "validation/f1": 0.9829},
        "confusion": {"": confusion(classes)}, "peak_memory": 620_000_000, "memory_limit": 4 * 2**30,
        "parameters": 94_538, "trainable": 94_538, "stopped_because": "all 12 epochs are done",
        "phases": {"import": 2.1, "data": 0.4, "train": 35.2, "evaluate": 2.9, "checkpoint": 0.6},
    }  # fmt: skip


def seen(plan: plans.Plan) -> dict[str, Any]:
    found: dict[str, Any] = {d.name: {"asked": d.value, "seen": d.value, "same": True, "cause": None}
                             for d in plan.decisions}  # fmt: skip
    found["allocator"] |= {"asked": "tcmalloc", "seen": "malloc", "same": False, "cause": "LD_PRELOAD was dropped"}
    return found | {"libraries": {"torch": "2.13.0+cpu", "oneDNN": "3.11.2", "libiomp5": "openmp 20240515, 2 threads"}}


def make(run: Path, machine: str = "codespace-2core-cgroup2", classes: list[str] | None = None) -> Path:
    """A run folder as a finished run leaves it."""
    run.mkdir(parents=True)
    job: Job = spec.load(ROOT / "jobs" / "digits.yaml")
    hardware = load(MACHINES / f"{machine}.json")
    plan = plans.resolve(job, hardware)
    state = {"status": "done", "exit_code": 0, "source": "jobs/digits.yaml", "set": ["train.epochs=12"], "attempts": 1,
             "started": "2025-03-01T10:00:00+00:00", "ended": "2025-03-01T10:00:44+00:00"}  # fmt: skip
    texts: dict[str, Any] = {"hardware": hardware.to_json(), "plan": plan.to_json() | {"seen": seen(plan)},
                             "result": result(classes or [str(i) for i in range(10)]), "state": state}  # fmt: skip
    for name, data in texts.items():
        (run / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    (run / "job.yaml").write_text(spec_text(job), encoding="utf-8")
    rows(run / "metrics.jsonl", metrics())
    rows(run / "telemetry.jsonl", telemetry())
    rows(run / "events.jsonl", [{"time": "2025-03-01T10:00:07+00:00", "kind": "retry", "text": "one file read again"}])
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make(tmp_path_factory.mktemp("runs") / "digits-001")
    write(run)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "digits-001", ignore=shutil.ignore_patterns("report.*")))


def change(path: Path, edit: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def text_of(run: Path) -> str:
    write(run)
    return (run / "report.md").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Collects what a browser would load, run or show, and whether every element is closed in turn."""

    VOID = ("meta", "br", "path", "use", "rect", "image")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("href", "src", "srcset", "action", "data", "xlink:href") or "url(" in (value or ""):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += f" {data}"


def page_of(run: Path) -> Page:
    return Page((run / "report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "words",
    [
        "0.9861", "validation/accuracy, the best, at step 495 of 540, epoch 11 of 12", "exit 0: done",
        "all 12 epochs are done", "41.6 s", "518.3", "591 MiB", "of 4.0 GiB", "94,538", "all trainable", "Learning rate",
        "Gradient norm", "Macro F1", "Confusion matrix", "samples right", "taken for", "cpu_threads",
        "1 of 10 values is not as asked", "LD_PRELOAD was dropped", "openmp 20240515, 2 threads", "logical CPUs",
        "Throughput, samples/s", "Where the time went", "held the run back for 0.80 s", "one file read again",
        "jobs/digits.yaml", "train.epochs=12", "batch_size: 32",
    ],
)  # fmt: skip
def test_page_and_markdown_tell_the_same(finished: Path, words: str) -> None:
    assert words in re.sub(r"\s+", " ", page_of(finished).text)
    assert words in (finished / "report.md").read_text(encoding="utf-8").replace("&lt;", "<")


def test_every_decision_stands_with_its_reason(finished: Path) -> None:
    plan = json.loads((finished / "plan.json").read_text(encoding="utf-8"))
    text = page_of(finished).text
    for decision in plan["decisions"]:
        assert decision["name"] in text
        assert decision["reason"] in text


def test_json(finished: Path) -> None:
    data = json.loads((finished / "report.json").read_text(encoding="utf-8"))
    assert data["best"] == {"metric": "validation/accuracy", "value": 0.9861, "step": 495, "epoch": 11}
    assert (data["status"], data["exit_code"], data["exit_meaning"]) == ("done", 0, "done")
    assert data["differences"] == ["allocator"]
    assert data["curves"]["validation/accuracy"][-1][0] == STEPS
    right, samples = data["confusion"][""]["right"], data["confusion"][""]["samples"]
    assert samples == 360
    assert 0.9 < right / samples < 1
    assert data["gaps"] == []


def test_page_is_closed_and_loads_nothing(finished: Path) -> None:
    page = page_of(finished)
    assert page.open == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert page.loads
    assert all(load.startswith(("#", "data:image/png;base64,", "url(#")) for load in page.loads)
    assert len(page.ids) == len(set(page.ids))
    assert {load[1:] for load in page.loads if load.startswith("#")} <= set(page.ids)
    assert "http" not in (finished / "report.html").read_text(encoding="utf-8").replace("http-equiv", "")


def test_same_files_same_bytes(run: Path, finished: Path) -> None:
    write(run)
    for name in ("report.html", "report.md", "report.json"):
        assert (run / name).read_bytes() == (finished / name).read_bytes()


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    classes = [EVIL, "</text></svg><b>", "\ud800\x00\x1b[31m", "数字 $x^2$", "#010102", "1.23456", 'a" onload="x']
    run = make(tmp_path / "digits-<b>1", classes=classes)
    change(run / "plan.json", lambda p: p["decisions"][0].update(reason=EVIL, value=EVIL))
    change(run / "plan.json", lambda p: p.update(notes=[EVIL], profile=EVIL))
    change(run / "state.json", lambda s: s.update(status=EVIL, source=EVIL))
    change(run / "result.json", lambda r: r.update(stopped_because=EVIL, phases={EVIL: 1.0}, last={EVIL: 1.0}))
    rows(run / "metrics.jsonl", [{"step": 1, "epoch": 0, EVIL: 1.0}, {"step": 2, "epoch": 0, EVIL: 2.0}])
    rows(run / "events.jsonl", [{"time": 1.5, "kind": EVIL, "text": EVIL}])
    (run / "job.yaml").write_text(f"name: x\n# {EVIL} ``` </pre>\n", encoding="utf-8")
    write(run)
    page = page_of(run)
    assert {"script", "b"} & page.tags <= {"b"}
    assert page.open == []
    assert page.text.count("alert(1)") >= 10
    assert not [load for load in page.loads if "evil" in load and not load.startswith("#")]
    for name in ("#010102", "1.23456", "数字 $x^2$"):
        assert name in page.text
    text = (run / "report.md").read_text(encoding="utf-8").split("````yaml")[0]
    assert "<script" not in text
    assert not re.search(r"(?<!\\)[\[`]", text)
