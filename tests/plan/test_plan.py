"""The plan: precedence, refusals, notes, replay; and the table of recorded machines."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from drivetrain import optimizations
from drivetrain.errors import SpecError
from drivetrain.hardware import facts
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.plan import final_plan, plan, show_plan
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan_table import render, render_changes
from tests.messages import get_message, says, says_each
from tests.paths import MACHINES

TEXT = "name: a\ntask: image-classification\ndata: {train: x}\n"


def job(text: str = "") -> Job:
    return job_spec.check(parse(TEXT + text, "job.yaml"))


def machine(name: str = "vm-2core-cgroup1") -> Hardware:
    return facts.read_hardware(MACHINES / f"{name}.json")


# Per machine: image, precision, compile, threads follow from shared facts on chips and drivers.
TABLE = {
    "codespace-2core-cgroup2": ("cpu", "fp32"),
    "vm-2core-cgroup1": ("cpu", "fp32"),
    "laptop": ("cpu", "fp32"),
    "gtx960": ("legacy", "fp32"),
    "gtx1080": ("legacy", "fp32"),
    "gtx1650-4gb": ("legacy", "fp32"),
    "gtx1660": ("legacy", "fp32"),
    "quadro-t1000": ("legacy", "fp32"),
    "gpu-2gb": ("legacy", "fp32"),
    "p100": ("legacy", "fp32"),
    "v100": ("legacy", "fp16"),
    "t4": ("legacy", "fp16"),
    "t4-driver580": ("ampere", "fp16"),
    "rtx3060-driver550": ("legacy", "bf16"),
    "rtx3060-wsl2": ("ampere", "bf16"),
    "a40-vgpu": ("ampere", "bf16"),
    "a100-mig": ("ampere", "bf16"),
    "b200": ("ampere", "bf16"),
    "two-rtx5090-one-full": ("ampere", "bf16"),
    "rtx3060-driver580": ("ampere", "bf16"),
    "rtx4090": ("ampere", "bf16"),
    "l4": ("ampere", "bf16"),
    "rtx5090": ("ampere", "bf16"),
    "a100": ("ampere", "bf16"),
    "h100": ("ampere", "bf16"),
    "h200": ("ampere", "bf16"),
    "graviton2": ("cpu", "fp32"),
    "graviton3": ("cpu", "fp32"),
    "graviton4": ("cpu", "fp32"),
    "ampere-altra": ("cpu", "fp32"),
    "raspberry-pi5": ("cpu", "fp32"),
    "macbook-m1-docker": ("cpu", "fp32"),
    "macbook-m1": ("cpu", "fp32"),
    "macbook-m2": ("cpu", "fp32"),
}


def test_every_recorded_machine_is_in_the_table() -> None:
    assert {path.stem for path in MACHINES.glob("*.json")} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_image_and_precision(name: str) -> None:
    made = plan.resolve(job(), machine(name))
    assert (made.image, made.value("precision")) == TABLE[name]


@pytest.mark.parametrize(
    ("name", "segments"),
    [("rtx3060-driver580", True), ("rtx3060-wsl2", False), ("a40-vgpu", False), ("a100-mig", True)],
)
def test_where_the_allocator_has_expandable_segments(name: str, segments: bool) -> None:
    assert plan.resolve(job(), machine(name)).value("allocator_segments") is segments


def test_plain_is_everything_off() -> None:
    made = plan.resolve(job(), machine("h200"), plain=True)
    from drivetrain import optimizations

    assert made.values() == optimizations.off_values()
    assert {d.source for d in made.decisions} == {"plain"}
    expected = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert made.environment(machine("h200")) == expected
    assert made.environment(machine()) == {}


def test_the_job_comes_first() -> None:
    made = plan.resolve(job("optimize: {cpu_threads: 1, precision: bf16}"), machine())
    rows = {d.name: d for d in made.decisions}
    assert (rows["cpu_threads"].value, rows["cpu_threads"].source) == (1, "job")
    assert made.environment(machine())["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("name", "optimize", "reason"),
    [
        ("t4", "precision: bf16", "bf16 needs 8.0, below that torch only emulates it"),
        ("gtx1660", "precision: fp16", "no tensor cores, and fp16 produces NaN on it"),
        ("codespace-2core-cgroup2", "precision: bf16", "this CPU has no bf16 instructions"),
        ("codespace-2core-cgroup2", "precision: tf32", "TF32 needs an NVIDIA GPU"),
        ("gtx1080", "compile: true", "torch.compile needs 7.0"),
        ("vm-2core-cgroup1", "cpu_threads: 64", "only 2 CPUs are available to this process"),
        ("vm-2core-cgroup1", "micro_batch: 64", "train.batch_size is 32"),
        ("laptop", "openmp_runtime: iomp5", "the iomp5 library is not installed"),
    ],
)
def test_requested_but_impossible(name: str, optimize: str, reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan.resolve(job(f"optimize:\n  {optimize}\n"), machine(name))
    text = str(caught.value)
    key = optimize.split(":")[0]
    assert text.startswith(f"job.yaml:5:3: optimize.{key}: is ")
    assert reason in text
    assert says(text, "remove-key-default")


def test_several_refusals_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        plan.resolve(job("optimize: {cpu_threads: 64, micro_batch: 99}"), machine())
    assert len(caught.value.problems) == 2


def limited(cpus: float, memory: int) -> Hardware:
    here = machine()
    cpu = replace(here.cpu, quota=cpus, budget=max(1, int(cpus)))
    return replace(here, cpu=cpu, memory=replace(here.memory, limit=memory), place="docker")


@pytest.mark.parametrize(
    ("limits", "here", "note"),
    [
        ("cpus: 2", limited(1, 4 << 30), "limits.cpus: 2 requested, only 1 available"),
        ("cpus: 1", limited(2, 4 << 30), "limits.cpus: 1 requested but not enforced; 2 CPUs are available"),
        ("memory: 4g", limited(2, 2 << 30), "limits.memory: 4g requested, only 2.0 GiB available"),
        ("memory: 1g", limited(2, 2 << 30), "limits.memory: 1g requested but not enforced; 2.0 GiB available"),
    ],
)
def test_limits_that_differ_from_the_request(limits: str, here: Hardware, note: str) -> None:
    made = plan.resolve(job(f"limits: {{{limits}}}"), here)
    assert note in made.notes


def test_limits_as_requested_need_no_note() -> None:
    assert plan.resolve(job("limits: {cpus: 2, memory: 4g}"), limited(2, 4 << 30)).notes == ()


def test_a_gpu_that_the_cpu_image_cannot_use() -> None:
    trouble = replace(machine(), image="cpu", gpu_trouble="an NVIDIA device is on the bus, and no driver is mounted")
    notes = plan.resolve(job(), trouble).notes
    assert says_each(notes, (get_message("gpu-nvidia-device-bus"),))


@pytest.mark.parametrize(("quota", "threads"), [(None, 2), (2.0, 2), (1.9, 1), (1.0, 1), (0.5, 1)])
def test_threads_follow_the_quota(quota: float | None, threads: int) -> None:
    here = machine()
    budget = 2 if quota is None else max(1, min(2, int(quota)))
    made = plan.resolve(job(), replace(here, cpu=replace(here.cpu, quota=quota, budget=budget)))
    assert made.value("cpu_threads") == threads


def test_threads_on_hyperthreads_of_one_core_are_provisional_where_they_can_be_measured() -> None:
    here = machine("codespace-2core-cgroup2")
    row = plan.resolve(job(), here).row("cpu_threads")
    assert (row.value, row.provisional) == (1, True)
    assert row.reason.endswith("; long runs measure 2, too")
    final = final_plan.refine(plan.resolve(job(), here), job(), here, Workload(layers={"Conv2d": 3})).row("cpu_threads")
    assert (final.value, final.source, final.provisional) == (1, "choice", False)
    for asked in ("optimize: {measure: off}", "optimize: {cpu_threads: 1}"):
        assert not plan.resolve(job(asked), here).row("cpu_threads").provisional
    assert not plan.resolve(job(), machine()).row("cpu_threads").provisional


def test_preloads_are_joined() -> None:
    libraries = replace(machine().libraries, iomp5="/lib/libiomp5.so", tcmalloc="/lib/libtcmalloc.so")
    here = replace(machine(), libraries=libraries)
    environment = plan.resolve(job(), here).environment(here)
    assert environment["LD_PRELOAD"] == "/lib/libtcmalloc.so:/lib/libiomp5.so"
    assert environment["KMP_BLOCKTIME"] == "1"


def test_a_stored_plan_replays(tmp_path: Path) -> None:
    asked = plan.resolve(job("optimize: {cpu_threads: 1, channels_last: false}"), machine())
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(asked.to_json()))
    again = plan.resolve(job(), machine(), replay=plan.load(path).values())
    rows = {d.name: d for d in again.decisions}
    assert (rows["cpu_threads"].value, rows["cpu_threads"].source) == (1, "file")
    assert {d.name: d.value for d in again.decisions} == {d.name: d.value for d in asked.decisions}


def test_a_stored_value_that_is_not_possible_here() -> None:
    made = plan.resolve(job(), machine("t4"), replay={"precision": "bf16"})
    row = next(d for d in made.decisions if d.name == "precision")
    assert row.value == "fp16"
    assert says(row.reason, "stored-value-bf16-possible", "7.5")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("not json", "Expecting value"),
        ("{}", "'decisions'"),
        ('{"decisions": [{"name": "x"}]}', "missing"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(SpecError, match=expected):
        plan.load(path)


def capture(*parts: object) -> str:
    """What is printed, on lines of 100 columns."""
    screen = Console(file=io.StringIO(), width=100)
    for part in parts:
        screen.print(part)
    return cast(io.StringIO, screen.file).getvalue()


def shown(*parts: object) -> str:
    """What is printed, as one line without runs of spaces."""
    return " ".join(capture(*parts).split())


def test_what_does_not_apply_is_one_line() -> None:
    """On a CPU nobody reads about GPUs, unless the job asked for it or the reader asks for all."""
    wanted, here = job(), machine()
    made = plan.resolve(wanted, here)
    text, whole = shown(render(made, wanted, here)), shown(render(made, wanted, here, show_all=True))
    for name in ("cuda_graphs", "pinned_transfer", "attention", "feature_cache", "unpadding"):
        assert name not in text
        assert name in whole
    assert says(text, "settings-apply-gpu-nothing", 12, 7, 2, 2, 1)
    assert "`drivetrain plan JOB --all` shows them" in text
    assert "do not apply" not in whole
    assert all(row.name in whole for row in made.decisions)
    asked = job("optimize: {cuda_graphs: false}")
    assert "cuda_graphs false job" in shown(render(plan.resolve(asked, here), asked, here))
    assert "cuda_graphs" in shown(render(plan.resolve(wanted, machine("t4")), wanted, machine("t4")))


def test_a_plan_is_one_line_unless_details_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, here = job("optimize: {compile: false}"), machine()
    resolved = plan.resolve(wanted, here)
    applying = re.findall(r"^(\w+)  ", capture(render(resolved, wanted, here)), re.MULTILINE)
    for verbose, name in (("", "short"), ("1", "long")):
        monkeypatch.setenv("DRIVETRAIN_VERBOSE", verbose)
        show_plan.show(resolved, wanted.model_copy(update={"name": name}), here, tmp_path / "plan.json", None)
        text = capsys.readouterr().out
        assert ("cpu_threads" in text) == bool(verbose)
    monkeypatch.delenv("DRIVETRAIN_VERBOSE")
    show_plan.show(resolved, wanted.model_copy(update={"name": "shortest"}), here, tmp_path / "plan.json", None)
    text = capsys.readouterr().out
    rows = len(applying) - 1  # without the head of the table
    assert f"  settings {rows}: {rows - 1} choice, 1 job; -v lists them" in text
    assert len(text.splitlines()) == 3 + len(resolved.notes)


def test_a_plan_that_was_shown_is_not_shown_again() -> None:
    wanted, here, file = job(), machine(), Path("runs/a-001/plan.json")
    made = plan.resolve(wanted, here)
    text = shown(render_changes(made, made, file, wanted, here))
    assert text.startswith("plan for a (image-classification): unchanged from runs/a-001/plan.json")
    assert "cpu_threads" not in text
    other = plan.resolve(job("optimize: {cpu_threads: 1}"), here)
    text = shown(render_changes(other, replace(made, notes=("old",)), file, wanted, here))
    assert says(text, "of-settings-differ-from", 1, len(made.decisions), "runs/a-001/plan.json")
    assert "cpu_threads 1 job" in text
    assert "denormals" not in text


def test_a_resumed_run_keeps_its_reasons() -> None:
    """What is replayed stands in the plan with the source and reason of the first start."""
    first = plan.resolve(job(), machine())
    again = plan.resolve(job(), machine(), replay=first.values())
    assert {row.source for row in again.decisions} == {"file"}
    assert plan.keep_reasons(again, first).decisions == first.decisions


def test_a_plan_with_other_values_keeps_its_reasons() -> None:
    made = plan.resolve(job("optimize: {precision: fp32}"), machine())
    other = made.with_values({"cpu_threads": 1, "micro_batch": 4})
    assert (other.value("cpu_threads"), other.value("micro_batch")) == (1, 4)
    assert other.row("cpu_threads").reason == made.row("cpu_threads").reason
    assert {name: value for name, value in made.values().items() if other.value(name) != value} == {
        name: made.value(name) for name in ("cpu_threads", "micro_batch")
    }
    assert made.with_values({}) == made


def test_enabled_optimizations_in_the_order_of_application() -> None:
    off = optimizations.off_values()
    made = plan.resolve(job(), machine()).with_values(off | {"micro_batch": 4, "denormals": True})
    assert [row.name for row in made.list_enabled()] == ["denormals", "micro_batch"]
    assert made.only(["micro_batch"]).values() == off | {"micro_batch": 4}
    assert made.only(()).list_enabled() == ()


def test_a_learned_decision_has_its_own_reason_and_no_evidence() -> None:
    made = plan.resolve(job(), machine())
    row = replace(made.row("micro_batch"), evidence="0.9x", provisional=True).learn(2, "memory", "it ran out")
    assert (row.value, row.source, row.reason, row.evidence, row.provisional) == (
        2,
        "memory",
        "it ran out",
        None,
        False,
    )
    again = made.with_rows([row])
    assert again.row("micro_batch") == row
    assert [one for one in again.decisions if one != row] == [
        one for one in made.decisions if one.name != "micro_batch"
    ]


def test_a_plan_is_refined_by_what_was_measured_and_by_what_is_known() -> None:
    """Open decisions take what was measured; requested values and those that a failure has taught stay."""
    wanted, here = job("optimize: {cpu_threads: 1}"), machine()
    stored = plan.resolve(wanted, here)
    stored = stored.with_rows([stored.row("denormals").learn(False, "crash", "it died")])
    found = {
        "channels_last": Measurement(False, "0.9x", "2026-01-01"),
        "denormals": Measurement(True, "1.1x", "2026-01-01"),
    }
    made = final_plan.refine(stored, wanted, here, Workload(layers={"Conv2d": 3}), found)
    rows = {row.name: (row.value, row.source) for row in made.decisions}
    assert rows["channels_last"] == (False, "measured")
    assert rows["cpu_threads"] == (1, "job")
    assert rows["denormals"] == (False, "crash")
    assert not any(row.provisional for row in made.decisions)


@pytest.mark.parametrize("width", [40, 80, 95])
def test_a_narrow_terminal_breaks_reasons_between_words(width: int) -> None:
    wanted, here = job(), machine()
    made = plan.resolve(wanted, here)
    screen = Console(file=io.StringIO(), width=width)
    screen.print(render(made, wanted, here))
    text = cast(io.StringIO, screen.file).getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    words = set(text.split())
    for row in made.decisions:
        if f"{row.name}:" in words:
            assert {word for word in row.reason.split() if len(word) <= width - 4} <= words


def test_a_plan_of_another_run_that_the_same_command_has_shown_is_not_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, here, file = job(), machine(), tmp_path / "plan.json"
    made = plan.resolve(wanted, here)
    file.write_text(json.dumps(made.to_json()))
    one = wanted.model_copy(update={"name": "a-seed1"})
    show_plan.show(made, one, here, tmp_path / "other.json", None, file)
    assert capsys.readouterr().out.startswith("plan for a-seed1 (image-classification): unchanged from ")
    two = wanted.model_copy(update={"name": "a-seed2"})
    show_plan.show(made, two, here, tmp_path / "other.json", None, tmp_path / "missing.json")
    assert "-v lists them" in capsys.readouterr().out


@pytest.mark.parametrize("notes", [None, 1], ids=["nothing", "a number"])
def test_a_plan_file_with_notes_of_another_kind(tmp_path: Path, notes: object) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"decisions": [], "notes": notes}))
    with pytest.raises(SpecError, match="--plan"):
        plan.load(tmp_path / "plan.json")
