"""What GPUs need: decided on recorded machines with the reason, and run as far as a CPU can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.dataset import Batch
from drivetrain.errors import SpecError
from drivetrain.hardware import facts, gpu_selection
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.optimizations import allocator_segments, attention, compile, cudnn_benchmark, gpu_resident_data
from drivetrain.plan import plan
from drivetrain.system import torch_settings
from drivetrain.training import step_result, torch_setup
from tests import tiny
from tests.messages import get_message, says_each
from tests.paths import MACHINES

GPUS = ("gtx960", "gtx1650-4gb", "v100", "t4", "rtx3060-driver550", "a100", "h200")
CNN = Workload(
    layers={"Conv2d": 20, "BatchNorm2d": 20}, parameters=11_000_000, sample_bytes=3 * 64 * 64, samples=10_000
)
LARGE = replace(CNN, parameters=100_000_000)
FILES = replace(CNN, decoded=False)
BERT = Workload(
    layers={"BertSelfAttention": 12, "Linear": 70}, parameters=110_000_000, samples=1000, sample_bytes=2048, ragged=True
)


def read_machine(name: str) -> Hardware:
    return facts.read_hardware(MACHINES / f"{name}.json")


def make_job(task: str = "image-classification", **parts: str) -> Job:
    data = "{train: x, text: a, labels: b}" if task.startswith("text") else "{train: x}"
    rows = "".join(f"{key}: {{{value}}}\n" for key, value in parts.items())
    return job_spec.check(parse(f"name: a\ntask: {task}\ndata: {data}\n{rows}", "job.yaml"))


SAME = {"train": "deterministic: true"}
TEXT = "text-classification"

# name, machine, workload, task, spec, value, reason
TABLE: list[tuple[str, str, Workload | None, str, dict[str, str], Any, str]] = [
    ("allocator_segments", "laptop", None, "", {}, False, "it configures the GPU allocator"),
    *(("allocator_segments", name, CNN, "", {}, True, "avoids GPU memory fragmentation") for name in GPUS),
    ("attention", "laptop", BERT, TEXT, {}, "auto", "on a CPU torch has one fused kernel"),
    ("attention", "h200", CNN, "", {}, "auto", "the network has no attention layer"),
    ("attention", "h200", None, TEXT, SAME, "flash", "flash without a mask, else math"),
    ("attention", "h200", BERT, TEXT, SAME, "flash", "flash without a mask, else math"),
    ("attention", "h200", BERT, TEXT, {}, "auto", "torch picks flash, memory-efficient"),
    ("attention", "t4", BERT, TEXT, SAME, "math", "flash needs capability 8.0, and the memory-efficient backward pass"),
    ("attention", "gtx960", BERT, TEXT, {}, "efficient", "memory-efficient attention works from 5.0"),
    ("compile", "h200", CNN, "", {}, False, "compiling takes up to a minute; used only if measured faster"),
    ("compile", "gtx960", CNN, "", {}, False, "NVIDIA GeForce GTX 960 has capability 5.2"),
    ("cudnn_benchmark", "laptop", CNN, "", {}, False, "cuDNN needs a GPU"),
    ("cudnn_benchmark", "h200", CNN, "", SAME, False, "benchmark results vary"),
    ("cudnn_benchmark", "h200", CNN, "", {}, False, "takes seconds at the start; used only if measured faster"),
    ("cudnn_benchmark", "gtx1660", CNN, "", {}, False, "on GTX 16 GPUs"),
    ("cudnn_benchmark", "h200", BERT, TEXT, {}, False, "no convolution"),
    ("cudnn_benchmark", "h200", replace(CNN, ragged=True), "", {}, False, "every new length would be benchmarked"),
    ("gpu_resident_data", "laptop", CNN, "", {}, False, "no GPU to keep the samples on"),
    ("gpu_resident_data", "h200", None, "", {}, True, "if the samples fit"),
    ("gpu_resident_data", "t4", CNN, "", {}, True, "10,000 samples take 117 MiB of 14."),
    ("gpu_resident_data", "gpu-2gb", replace(CNN, samples=100_000), "", {}, False, "more than a quarter of the"),
    (
        "gpu_resident_data",
        "gpu-2gb",
        replace(CNN, activations=1 << 30),
        "",
        {},
        True,
        "10,000 samples take 117 MiB of 1.9",
    ),
    (
        "gpu_resident_data",
        "gpu-2gb",
        replace(CNN, activations=5 << 28),
        "",
        {},
        False,
        "samples and network together need 1.4",
    ),
    ("gpu_resident_data", "h200", BERT, TEXT, {}, False, "assembled on the host"),
    (
        "gpu_resident_data",
        "h200",
        FILES,
        "",
        {"train": "epochs: 1"},
        False,
        "in a single epoch no image is decoded twice",
    ),
    ("gpu_resident_data", "h200", CNN, "", {"optimize": "loader_workers: 4"}, False, "prepares batches on the host"),
    (
        "gpu_resident_data",
        "t4",
        CNN,
        "",
        {"limits": "gpu_memory: 256m"},
        False,
        "a quarter of the 256 MiB of available GPU memory",
    ),
    ("pinned_transfer", "laptop", CNN, "", {}, False, "no GPU to copy batches to"),
    ("pinned_transfer", "h200", CNN, "", {}, False, "with gpu_resident_data nothing is copied"),
    ("pinned_transfer", "h200", BERT, TEXT, {}, True, "the host does not wait for their copy"),
    ("loader_workers", "h200", FILES, "", {}, 0, "gpu_resident_data assembles batches on the GPU"),
    ("loader_workers", "h200", replace(FILES, samples=10**9), "", {}, 15, "the 16 available CPUs minus one"),
]


@pytest.mark.parametrize(("name", "machine", "workload", "task", "settings", "value", "reason"), TABLE)
def test_decisions(
    name: str, machine: str, workload: Workload | None, task: str, settings: dict[str, str], value: Any, reason: str
) -> None:
    job = make_job(task or "image-classification", **settings)
    gpu_plan = plan.resolve(job, read_machine(machine), workload)
    row = next(d for d in gpu_plan.decisions if d.name == name)
    assert (row.value, row.source) == (value, "choice")
    assert reason in row.reason


REFUSED = [
    ("h200", "", "cudnn_benchmark: true", "train.deterministic needs the same kernels"),
    ("laptop", "", "compile: graphs", "CUDA graphs need a GPU"),
    ("h200", "", "compile: graphs, micro_batch: 8", "accumulates gradients"),
    ("p100", "", "compile: graphs", "torch.compile needs 7.0"),
    ("laptop", "", "step_graph: true", "CUDA graphs need a GPU"),
    ("p100", "", "step_graph: true", "captured from 7.0 on"),
    ("h200", TEXT, "step_graph: true", "samples have different lengths"),
    ("h200", "", "step_graph: true, micro_batch: 8", "computes a batch in parts"),
    ("h200", "", "step_graph: true, compile: graphs", "captures the network by itself"),
    ("h200", "", "step_graph: true, fused_optimizer: false", "the host decides"),
    ("two-rtx5090-one-full", "", "step_graph: true", "steps of several processes exchange numbers"),
    ("two-rtx5090-one-full", "", "compile: graphs", "several processes sum gradients during the backward pass"),
    ("t4", TEXT, "attention: flash", "Tesla T4 has capability 7.5; flash attention needs 8.0"),
    ("laptop", TEXT, "attention: math", "a CPU has only one attention kernel"),
    ("laptop", "", "pinned_transfer: true", "no GPU to copy batches to"),
    ("laptop", "", "allocator_segments: true", "it configures the GPU allocator"),
    ("laptop", "", "gpu_resident_data: true", "no GPU to keep the samples on"),
]


@pytest.mark.parametrize(("machine", "task", "optimize", "expected"), REFUSED)
def test_refusals(machine: str, task: str, optimize: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan.resolve(make_job(task or "image-classification", optimize=optimize, **SAME), read_machine(machine))
    assert expected in str(caught.value)


def test_whole_steps_are_tried_without_compile() -> None:
    from drivetrain.optimizations import step_graph

    gpu_plan = plan.resolve(make_job(optimize="step_graph: true, compile: false"), read_machine("t4"), CNN)
    assert (gpu_plan.value("compile"), gpu_plan.value("step_graph")) == (False, True)
    for workload in (CNN, LARGE):
        assert step_graph.candidates(make_job(), read_machine("h200"), workload) == [False, True]
    assert step_graph.candidates(make_job(), read_machine("gtx960"), CNN) == [False]


def test_a_step_with_dropout_between_lstm_layers_is_not_recorded() -> None:
    from drivetrain.optimizations import step_graph

    for layers, dropout, expected in ((2, 0.1, "reads its seed on the host"), (2, 0.0, None), (1, 0.1, None)):
        job = job_spec.check(
            parse(
                "name: a\ntask: series-classification\n"
                "data: {train: x.csv, features: [a], label: b, time: t, group: g, window: 64}\n"
                f"model: {{lstm_layers: {layers}, dropout: {dropout}}}\n",
                "job.yaml",
            )
        )
        obstacle = step_graph.refuse(job, read_machine("h200"), None, True)
        assert (expected or "") in (obstacle or "")
        assert (obstacle is None) is (expected is None)


def test_the_allocator_is_set_before_the_trainer_starts() -> None:
    machine = read_machine("a100")
    assert (
        plan.resolve(make_job(), machine).environment(machine)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    )
    assert plan.resolve(make_job(), machine, plain=True).environment(machine) == gpu_selection.build_environment(
        machine
    )
    assert allocator_segments.environment(machine, False) == {}


def test_graphs_of_compiled_kernels_are_measured_for_small_networks() -> None:
    gpu_plan = plan.resolve(make_job(optimize="compile: graphs"), read_machine("t4"), CNN)
    assert gpu_plan.value("compile") == "graphs"
    assert compile.candidates(make_job(), read_machine("h200"), CNN) == [True, False, "graphs"]
    assert compile.candidates(make_job(), read_machine("h200"), LARGE) == [True, False]
    assert compile.candidates(make_job(), read_machine("gtx960"), CNN) == [False]
    assert compile.candidates(make_job(), read_machine("laptop"), CNN) == [True, False]


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 8 << 30), (0.25, 2 << 30), ("6g", 6 << 30), ("1t", 8 << 30), (1, 8 << 30)]
)
def test_the_memory_of_a_gpu_that_a_job_allows(limit: Any, expected: int) -> None:
    gpu = read_machine("gtx1080").gpus[0]
    assert gpu_selection.count_allowed_bytes(gpu, limit) == expected
    assert gpu_selection.count_available_bytes(gpu, limit) == min(expected, gpu.free)


def test_a_dataset_that_may_draw_at_random_stays_on_the_host() -> None:
    text = "name: a\ntask: custom\ndata: {file: data.py}\nmodel: {file: net.py}\n"
    job = job_spec.check(parse(text, "job.yaml"))
    assert gpu_resident_data.choose(job, read_machine("h200"), CNN).value is True
    choice = gpu_resident_data.choose(job, read_machine("h200"), FILES)
    assert says_each((choice.value, choice.reason), (False, get_message("your-dataset-may-return")))


@pytest.mark.parametrize("gpu_memory", ["0", "1.5", "lots", "true", "6"])
def test_a_wrong_share_of_memory(gpu_memory: str) -> None:
    with pytest.raises(
        SpecError, match=r"(?s)limits\.gpu_memory.*a share above 0 and up to 1, or a size with its unit"
    ):
        make_job(limits=f"gpu_memory: {gpu_memory}")


@pytest.mark.parametrize(
    ("where", "note"),
    [
        ("laptop", "limits.gpu_memory: 0.5 has no effect without a GPU"),
        ("gtx1080", "limits.gpu_memory: tensors may use 4.0 GiB of 8.0 GiB"),
    ],
)
def test_the_plan_says_what_a_share_of_memory_means(where: str, note: str) -> None:
    assert note in plan.resolve(make_job(limits="gpu_memory: 0.5"), read_machine(where)).notes


def test_the_allocator_gets_its_memory_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    fractions: list[tuple[float, torch.device]] = []
    gtx1080 = read_machine("gtx1080")
    assert gtx1080.gpu is not None
    total = 8_000_000_000  # CUDA's, by which torch divides, is less than NVML's
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *arguments: fractions.append(arguments))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=total))
    device = torch.device("cuda:0")
    torch_setup.apply_settings(make_job(), gtx1080, device)
    torch_setup.apply_settings(make_job(limits="gpu_memory: 2g"), gtx1080, device)
    assert fractions == [((2 << 30) / total, device)]
    # Under WSL2 the driver would spill into the host's memory instead of refusing.
    gpu = replace(gtx1080.gpu, memory=8 << 30, free=6 << 30)
    torch_setup.apply_settings(make_job(), replace(gtx1080, gpus=(gpu,), wsl2=True), device)
    # Where others have left less than the reserve, nothing fits; torch refuses a negative share.
    torch_setup.apply_settings(make_job(), replace(gtx1080, gpus=(replace(gpu, free=1 << 28),), wsl2=True), device)
    assert fractions[1:] == [(((6 << 30) - (8 << 30) // 20) / total, device), (0.0, device)]


@pytest.mark.parametrize(
    ("changes", "wsl2", "reason"),
    [
        (
            {"driver": "581.29"},
            True,
            "under WSL2 the first allocation fails before driver 616: driver 581.29 for Windows",
        ),
        ({"driver": "616.92"}, True, None),
        ({"name": "NVIDIA A40-48C"}, False, "NVIDIA A40-48C is a vGPU"),
        ({"name": "GRID T4-16Q"}, False, "GRID T4-16Q is a vGPU"),
        ({"name": "Tesla V100-SXM2-16GB"}, False, None),
        ({"name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb"}, False, None),
    ],
)
def test_segments_are_off_where_the_first_allocation_would_fail(
    changes: dict[str, str], wsl2: bool, reason: str | None
) -> None:
    machine = read_machine("rtx3060-driver580")
    assert machine.gpu is not None
    choice = allocator_segments.choose(
        make_job(),
        replace(machine, gpus=(replace(machine.gpu, **changes),), wsl2=wsl2),  # type: ignore[arg-type]
        CNN,
    )
    assert choice.value is (reason is None)
    assert (reason or "fragmentation") in choice.reason


def test_where_no_memory_can_be_pinned_ordinary_memory_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    batch = Batch(np.arange(2), (torch.ones(2, 3),), {"": torch.ones(2)})
    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)
    assert batch.pin_memory() is batch
    to = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *a, **k: fail() if k.get("non_blocking") else to(self, *a, **k)
    )
    values, finite = step_result.stack_and_check(torch.tensor(1.5), torch.tensor(2.0))
    result = step_result.StepResult(values, finite, on_device=True, on_read=lambda _: None)
    assert result.read() == (1.5, 2.0)


def test_settings_of_the_process_are_those_of_the_plan(tmp_path: Path) -> None:
    kernels = torch_settings.list_attention_kernels()
    run = tiny.assemble_run(tmp_path, tiny.job(), settings={"attention": "math", "cudnn_benchmark": True})
    assert torch_settings.list_attention_kernels() == (False, False, False)
    assert (attention.effective(run), cudnn_benchmark.effective(run)) == ("math", True)
    assert torch.backends.cudnn.benchmark_limit == cudnn_benchmark.TRIED_KERNELS
    default_run = tiny.assemble_run(tmp_path, tiny.job())
    assert (attention.effective(default_run), cudnn_benchmark.effective(default_run)) == ("auto", False)
    assert torch_settings.list_attention_kernels() == kernels


def test_graphs_are_recorded_for_whole_batches_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are kept from the next replay; parts of a batch go through compiled code that records nothing."""
    modes: list[str | None] = []
    buffer = torch.zeros(16, 3)

    def compiled(network: Any, mode: str | None = None) -> Any:
        modes.append(mode)
        return lambda *inputs: buffer.copy_(network(*inputs).detach()) if mode else network(*inputs)

    monkeypatch.setattr(torch, "compile", compiled)
    step = tiny.assemble_run(tmp_path, tiny.job()).step
    step.compile(graphs=True)
    inputs = (torch.randn(16, 1, 8, 8),)
    out = step.forward.outputs(inputs)
    assert isinstance(out, torch.Tensor)
    assert out.data_ptr() != buffer.data_ptr()
    step.use_micro_batch(8)
    part = step.forward.outputs((inputs[0][:8],))
    assert isinstance(part, torch.Tensor)
    assert part.requires_grad
    assert (modes, step.forward.replays_kernels) == ([None, "reduce-overhead"], True)
