"""Where frozen layers are computed once, in which precision, and why not elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivetrain.errors import SpecError
from drivetrain.job.workload import Workload
from drivetrain.job_spec import load_job as job_spec
from drivetrain.optimizations import feature_cache, prefix_precision
from drivetrain.plan import plan
from tests import tiny
from tests.messages import saying, says, says_only

ENCODED = Workload(
    prefix="the embeddings and 10 of 12 layers", prefix_bytes=40 << 20, prefix_share=0.7, prefix_work=9e3
)


@pytest.mark.parametrize(
    ("model", "facts", "value", "reason"),
    [
        ("", None, False, "no part of the network is frozen"),
        ("freeze: {names: [features]}", None, True, "if they come first and their outputs fit"),
        (
            "freeze: {names: [features], train_mode: true}",
            None,
            False,
            "train_mode the outputs of frozen layers change",
        ),
        ("freeze: {names: [classifier]}", Workload(), False, "all come before the trained ones"),
        ("freeze: {names: [features]}", ENCODED, True, "saves 70% of the computation per step, needs 40 MiB of memory"),
        ("freeze: {names: [features]}", replace(ENCODED, prefix_work=10.0), False, "as fast as reading their outputs"),
        ("freeze: {names: [features]}", replace(ENCODED, prefix_bytes=3 << 30), True, "needs 3.0 GiB of disk space"),
        (
            "freeze: {names: [features]}",
            replace(ENCODED, prefix_bytes=9 << 40),
            False,
            "more than a quarter of the free",
        ),
    ],
)
def test_it_is_chosen_where_it_certainly_gains(model: str, facts: Workload | None, value: bool, reason: str) -> None:
    machine = tiny.machine()
    machine = replace(
        machine, memory=replace(machine.memory, available=1 << 30), storage=replace(machine.storage, runs_free=1 << 40)
    )
    choice = feature_cache.choose(tiny.job(model=model), machine, facts)
    assert choice.value is value
    assert reason in choice.reason


def test_changing_inputs_and_one_epoch() -> None:
    model = "freeze: {names: [features]}"
    text = tiny.TEXT.format(epochs=3, train="", model=f", {model}").replace(
        "train: x}", "train: x, augment: {mixup: {}}}"
    )
    job = job_spec.check(tiny.parse(text, "tiny.yaml"))
    assert says(str(feature_cache.refuse(job, tiny.machine(), ENCODED, True)), "changes-inputs", "data.augment.mixup")
    with pytest.raises(SpecError, check=saying("changes-inputs", "data.augment.mixup")):
        plan.resolve(
            job_spec.check(tiny.parse(text + "optimize: {feature_cache: true}\n", "tiny.yaml")), tiny.machine()
        )
    frozen_job = tiny.job(train="steps: 3", model=model)
    single_epoch_job = frozen_job.model_copy(update={"train": frozen_job.train.model_copy(update={"epochs": 1})})
    assert says_only(
        feature_cache.choose(single_epoch_job, tiny.machine(), ENCODED).reason, "single-epoch-nothing-computed"
    )
    workers_job = tiny.job(model=model, optimize="loader_workers: 2")
    assert says(str(feature_cache.refuse(workers_job, tiny.machine(), None, True)), "cached-features-need-none")
    alone_job = tiny.job(model=model, optimize="loader_workers: 0")
    assert feature_cache.refuse(alone_job, tiny.machine(), None, True) is None


@pytest.mark.parametrize(
    ("augment", "refusal"),
    [
        ("flip: true", "data.augment.flip changes the inputs in every epoch; data.augment.views makes that repeat"),
        ("mixup: {}", "data.augment.mixup changes the inputs in every step"),
        ("flip: true, views: 2", "None"),
    ],
)
def test_what_changes_the_inputs(augment: str, refusal: str) -> None:
    text = tiny.TEXT.format(epochs=3, train="", model=", freeze: {names: [features]}")
    job = job_spec.check(tiny.parse(text.replace("train: x}", f"train: x, augment: {{{augment}}}}}"), "tiny.yaml"))
    assert str(feature_cache.refuse(job, tiny.machine(), ENCODED, True)) == refusal


def test_views_without_anything_random_are_refused() -> None:
    text = tiny.TEXT.format(epochs=3, train="", model="").replace("train: x}", "train: x, augment: {views: 2}}")
    with pytest.raises(SpecError, check=saying("image-augmented-itself", "data.augment.views", 2)):
        job_spec.check(tiny.parse(text, "tiny.yaml"))


LARGE = replace(ENCODED, prefix_work=1e5)


@pytest.mark.parametrize(
    ("machine", "optimize", "facts", "value", "reason"),
    [
        ("amx", "", LARGE, "bf16", "bf16 matrix units (AMX)"),
        ("amx", "", None, "bf16", "bf16 matrix units (AMX)"),
        ("amx", "", replace(ENCODED, prefix_work=10.0), "fp32", "as fast as reading their outputs"),
        ("amx", "", replace(LARGE, prefix_bytes=1 << 16), "fp32", "takes too little time to matter"),
        ("amx", "precision: fp32", LARGE, "fp32", "optimize.precision is fp32"),
        ("amx", "feature_cache: false", LARGE, "fp32", "optimize.feature_cache is false"),
        ("avx512", "", LARGE, "fp32", "without bf16 matrix units it is often slower"),
        ("avx2", "", LARGE, "fp32", "no bf16 instructions"),
    ],
)
def test_the_prefix_is_computed_in_bf16_where_units_for_it_are(
    machine: str, optimize: str, facts: Workload | None, value: str, reason: str
) -> None:
    flags = {"amx": ("avx512_bf16", "amx_bf16"), "avx512": ("avx512f", "avx512_bf16"), "avx2": ("avx2",)}[machine]
    hardware = tiny.machine()
    hardware = replace(
        hardware, cpu=replace(hardware.cpu, flags=flags), memory=replace(hardware.memory, available=1 << 30)
    )
    job = tiny.job(model="freeze: {names: [features]}", optimize=optimize)
    choice = prefix_precision.choose(job, hardware, facts)
    assert (choice.value, reason in choice.reason) == (value, True), choice
