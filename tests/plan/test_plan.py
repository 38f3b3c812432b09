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
from drivetrain.plan import evidence, final_plan, plan, plan_table
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan_table import render, render_changes
from tests.messages import get_message, says, says_each
from tests.paths import MACHINES

TEXT = "name: a\ntask: image-classification\ndata: {train: x}\n"


def make_job(text: str = "") -> Job:
    return job_spec.check(parse(TEXT + text, "job.yaml"))


def read_machine(name: str = "vm-2core-cgroup1") -> Hardware:
    return facts.read_hardware(MACHINES / f"{name}.json")


# Per machine: image, precision, compile, threads follow from shared facts on chips and drivers.
TABLE = {
    "codespace-2core-cgroup2": ("cpu", "fp32"),
    "vm-2core-cgroup1": ("cpu", "bf16"),
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
    job_plan = plan.resolve(make_job(), read_machine(name))
    assert (job_plan.image, job_plan.value("precision")) == TABLE[name]


@pytest.mark.parametrize(
    ("name", "segments"),
    [("rtx3060-driver580", True), ("rtx3060-wsl2", False), ("a40-vgpu", False), ("a100-mig", True)],
)
def test_where_the_allocator_has_expandable_segments(name: str, segments: bool) -> None:
    assert plan.resolve(make_job(), read_machine(name)).value("allocator_segments") is segments


def test_plain_is_everything_off() -> None:
    plain_plan = plan.resolve(make_job(), read_machine("h200"), plain=True)
    from drivetrain import optimizations

    assert plain_plan.values() == optimizations.off_values()
    assert {d.source for d in plain_plan.decisions} == {"plain"}
    expected = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert plain_plan.environment(read_machine("h200")) == expected
    assert plain_plan.environment(read_machine()) == {}


def test_the_job_comes_first() -> None:
    job_plan = plan.resolve(make_job("optimize: {cpu_threads: 1, precision: bf16}"), read_machine())
    rows = {d.name: d for d in job_plan.decisions}
    assert (rows["cpu_threads"].value, rows["cpu_threads"].source) == (1, "job")
    assert job_plan.environment(read_machine())["OMP_NUM_THREADS"] == "1"


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
        plan.resolve(make_job(f"optimize:\n  {optimize}\n"), read_machine(name))
    text = str(caught.value)
    key = optimize.split(":")[0]
    assert text.startswith(f"job.yaml:5:3: optimize.{key}: is ")
    assert reason in text
    assert says(text, "remove-key-default")


def test_several_refusals_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        plan.resolve(make_job("optimize: {cpu_threads: 64, micro_batch: 99}"), read_machine())
    assert len(caught.value.problems) == 2


def limit_machine(cpus: float, memory: int) -> Hardware:
    machine = read_machine()
    cpu = replace(machine.cpu, quota=cpus, budget=max(1, int(cpus)))
    return replace(machine, cpu=cpu, memory=replace(machine.memory, limit=memory), place="docker")


@pytest.mark.parametrize(
    ("limits", "machine", "note"),
    [
        ("cpus: 2", limit_machine(1, 4 << 30), "limits.cpus: 2 requested, only 1 available"),
        ("cpus: 1", limit_machine(2, 4 << 30), "limits.cpus: 1 requested but not enforced; 2 CPUs are available"),
        ("memory: 4g", limit_machine(2, 2 << 30), "limits.memory: 4g requested, only 2.0 GiB available"),
        ("memory: 1g", limit_machine(2, 2 << 30), "limits.memory: 1g requested but not enforced; 2.0 GiB available"),
    ],
)
def test_limits_that_differ_from_the_request(limits: str, machine: Hardware, note: str) -> None:
    job_plan = plan.resolve(make_job(f"limits: {{{limits}}}"), machine)
    assert note in job_plan.notes


def test_limits_as_requested_need_no_note() -> None:
    assert plan.resolve(make_job("limits: {cpus: 2, memory: 4g}"), limit_machine(2, 4 << 30)).notes == ()


def test_a_gpu_that_the_cpu_image_cannot_use() -> None:
    machine = replace(
        read_machine(), image="cpu", gpu_trouble="an NVIDIA device is on the bus, and no driver is mounted"
    )
    notes = plan.resolve(make_job(), machine).notes
    assert says_each(notes, (get_message("gpu-nvidia-device-bus"),))


@pytest.mark.parametrize(("quota", "threads"), [(None, 2), (2.0, 2), (1.9, 1), (1.0, 1), (0.5, 1)])
def test_threads_follow_the_quota(quota: float | None, threads: int) -> None:
    machine = read_machine()
    budget = 2 if quota is None else max(1, min(2, int(quota)))
    job_plan = plan.resolve(make_job(), replace(machine, cpu=replace(machine.cpu, quota=quota, budget=budget)))
    assert job_plan.value("cpu_threads") == threads


def test_two_hyperthreads_of_one_core_compute_with_one_thread() -> None:
    row = plan.resolve(make_job(), read_machine("codespace-2core-cgroup2")).decision("cpu_threads")
    assert (row.value, row.provisional) == (1, False)


def test_preloads_are_joined() -> None:
    libraries = replace(read_machine().libraries, iomp5="/lib/libiomp5.so", tcmalloc="/lib/libtcmalloc.so")
    machine = replace(read_machine(), libraries=libraries)
    environment = plan.resolve(make_job(), machine).environment(machine)
    assert environment["LD_PRELOAD"] == "/lib/libtcmalloc.so:/lib/libiomp5.so"
    assert environment["KMP_BLOCKTIME"] == "1"


def test_a_stored_plan_replays(tmp_path: Path) -> None:
    stored_plan = plan.resolve(make_job("optimize: {cpu_threads: 1, channels_last: false}"), read_machine())
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(stored_plan.to_json()))
    replayed_plan = plan.resolve(make_job(), read_machine(), replay=plan.load(path).values())
    rows = {d.name: d for d in replayed_plan.decisions}
    assert (rows["cpu_threads"].value, rows["cpu_threads"].source) == (1, "file")
    assert {d.name: d.value for d in replayed_plan.decisions} == {d.name: d.value for d in stored_plan.decisions}


def test_a_stored_value_that_is_not_possible_here() -> None:
    replayed_plan = plan.resolve(make_job(), read_machine("t4"), replay={"precision": "bf16"})
    row = next(d for d in replayed_plan.decisions if d.name == "precision")
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


def capture_lines(*parts: object) -> str:
    """What is printed, on lines of 100 columns."""
    screen = Console(file=io.StringIO(), width=100)
    for part in parts:
        screen.print(part)
    return cast(io.StringIO, screen.file).getvalue()


def capture_line(*parts: object) -> str:
    """What is printed, as one line without runs of spaces."""
    return " ".join(capture_lines(*parts).split())


def test_what_does_not_apply_is_one_line() -> None:
    """On a CPU nobody reads about GPUs, unless the job asked for it."""
    job, machine = make_job(), read_machine()
    job_plan = plan.resolve(job, machine)
    text = capture_line(render(job_plan, job, machine))
    for name in ("step_graph", "pinned_transfer", "attention", "feature_cache", "unpadding"):
        assert name not in text
    assert says(text, "settings-apply-gpu-nothing", 9, 6, 2, 1)
    assert "`drivetrain plan JOB --json` lists them" in text
    gpu_job = make_job("optimize: {step_graph: false}")
    assert "step_graph false job" in capture_line(render(plan.resolve(gpu_job, machine), gpu_job, machine))
    assert "step_graph" in capture_line(render(plan.resolve(job, read_machine("t4")), job, read_machine("t4")))


def test_a_plan_is_one_line_unless_details_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, machine = make_job("optimize: {compile: false}"), read_machine()
    job_plan = plan.resolve(job, machine)
    names = re.findall(r"^(\w+)  ", capture_lines(render(job_plan, job, machine)), re.MULTILINE)
    for verbose, name in (("", "short"), ("1", "long")):
        monkeypatch.setenv("DRIVETRAIN_VERBOSE", verbose)
        plan_table.show(job_plan, job.model_copy(update={"name": name}), machine, tmp_path / "plan.json", None)
        text = capsys.readouterr().out
        assert ("cpu_threads" in text) == bool(verbose)
    monkeypatch.delenv("DRIVETRAIN_VERBOSE")
    plan_table.show(job_plan, job.model_copy(update={"name": "shortest"}), machine, tmp_path / "plan.json", None)
    text = capsys.readouterr().out
    rows = len(names) - 1  # without the head of the table
    assert f"  {rows} settings ({rows - 1} choice, 1 job); -v lists them" in text
    assert len(text.splitlines()) == 2 + len(job_plan.notes)


def test_a_plan_that_was_shown_is_not_shown_again() -> None:
    job, machine, file = make_job(), read_machine(), Path("runs/a-001/plan.json")
    job_plan = plan.resolve(job, machine)
    text = capture_line(render_changes(job_plan, job_plan, file, job, machine))
    assert text.startswith("plan for a (image-classification): unchanged from runs/a-001/plan.json")
    assert "cpu_threads" not in text
    other_plan = plan.resolve(make_job("optimize: {cpu_threads: 1}"), machine)
    text = capture_line(render_changes(other_plan, replace(job_plan, notes=("old",)), file, job, machine))
    assert says(text, "of-settings-differ-from", 1, len(job_plan.decisions), "runs/a-001/plan.json")
    assert "cpu_threads 1 job" in text
    assert "denormals" not in text


def test_a_resumed_run_keeps_its_reasons() -> None:
    """What is replayed stands in the plan with the source and reason of the first start."""
    first_plan = plan.resolve(make_job(), read_machine())
    replayed_plan = plan.resolve(make_job(), read_machine(), replay=first_plan.values())
    assert {row.source for row in replayed_plan.decisions} == {"file"}
    assert plan.keep_reasons(replayed_plan, first_plan).decisions == first_plan.decisions


def test_a_plan_with_other_values_keeps_its_reasons() -> None:
    job_plan = plan.resolve(make_job("optimize: {precision: fp32}"), read_machine())
    other_plan = job_plan.with_values({"cpu_threads": 1, "micro_batch": 4})
    assert (other_plan.value("cpu_threads"), other_plan.value("micro_batch")) == (1, 4)
    assert other_plan.decision("cpu_threads").reason == job_plan.decision("cpu_threads").reason
    assert {name: value for name, value in job_plan.values().items() if other_plan.value(name) != value} == {
        name: job_plan.value(name) for name in ("cpu_threads", "micro_batch")
    }
    assert job_plan.with_values({}) == job_plan


def test_enabled_optimizations_in_the_order_of_application() -> None:
    off_values = optimizations.off_values()
    job_plan = plan.resolve(make_job(), read_machine()).with_values(off_values | {"micro_batch": 4, "denormals": True})
    assert [row.name for row in job_plan.list_enabled()] == ["denormals", "micro_batch"]
    assert job_plan.with_only(["micro_batch"]).values() == off_values | {"micro_batch": 4}
    assert job_plan.with_only(()).list_enabled() == ()


def test_a_learned_decision_has_its_own_reason_and_no_evidence() -> None:
    job_plan = plan.resolve(make_job(), read_machine())
    row = replace(job_plan.decision("micro_batch"), evidence="0.9x", provisional=True).learn(2, "memory", "it ran out")
    assert (row.value, row.source, row.reason, row.evidence, row.provisional) == (
        2,
        "memory",
        "it ran out",
        None,
        False,
    )
    learned_plan = job_plan.with_rows([row])
    assert learned_plan.decision("micro_batch") == row
    assert [decision for decision in learned_plan.decisions if decision != row] == [
        decision for decision in job_plan.decisions if decision.name != "micro_batch"
    ]


def test_a_plan_is_refined_by_what_was_measured_and_by_what_is_known() -> None:
    """Open decisions take what was measured; requested values and those that a failure has taught stay."""
    job, machine = make_job("optimize: {cpu_threads: 1}"), read_machine()
    stored_plan = plan.resolve(job, machine)
    stored_plan = stored_plan.with_rows([stored_plan.decision("denormals").learn(False, "crash", "it died")])
    measurements = {
        "channels_last": Measurement(False, "0.9x", "2026-01-01"),
        "denormals": Measurement(True, "1.1x", "2026-01-01"),
    }
    refined_plan = final_plan.refine(stored_plan, job, machine, Workload(layers={"Conv2d": 3}), measurements)
    rows = {row.name: (row.value, row.source) for row in refined_plan.decisions}
    assert rows["channels_last"] == (False, "measured")
    assert rows["cpu_threads"] == (1, "job")
    assert rows["denormals"] == (False, "crash")
    assert not any(row.provisional for row in refined_plan.decisions)


@pytest.mark.parametrize("width", [40, 80, 95])
def test_a_narrow_terminal_breaks_reasons_between_words(width: int) -> None:
    job, machine = make_job(), read_machine()
    job_plan = plan.resolve(job, machine)
    screen = Console(file=io.StringIO(), width=width)
    screen.print(render(job_plan, job, machine))
    text = cast(io.StringIO, screen.file).getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    printed_words = set(text.split())
    for row in job_plan.decisions:
        if f"{row.name}:" in printed_words:
            assert {word for word in row.reason.split() if len(word) <= width - 4} <= printed_words


def test_a_plan_of_another_run_that_the_same_command_has_shown_is_not_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, machine, file = make_job(), read_machine(), tmp_path / "plan.json"
    job_plan = plan.resolve(job, machine)
    file.write_text(json.dumps(job_plan.to_json()))
    first_job = job.model_copy(update={"name": "a-seed1"})
    plan_table.show(job_plan, first_job, machine, tmp_path / "other.json", None, file)
    assert capsys.readouterr().out.startswith("plan for a-seed1 (image-classification): unchanged from ")
    second_job = job.model_copy(update={"name": "a-seed2"})
    plan_table.show(job_plan, second_job, machine, tmp_path / "other.json", None, tmp_path / "missing.json")
    assert "-v lists them" in capsys.readouterr().out


@pytest.mark.parametrize("notes", [None, 1], ids=["nothing", "a number"])
def test_a_plan_file_with_notes_of_another_kind(tmp_path: Path, notes: object) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"decisions": [], "notes": notes}))
    with pytest.raises(SpecError, match="--plan"):
        plan.load(tmp_path / "plan.json")


def test_a_cache_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine = read_machine()
    machine = replace(machine, storage=replace(machine.storage, cache=str(tmp_path / "file")))
    rows = {name: evidence.Measurement(1, "1", "2026-11-29") for name in ("compile", "channels_last")}
    lines: list[str] = []
    evidence.store(machine, "speed", rows, lines.append)
    assert len(lines) == 1
