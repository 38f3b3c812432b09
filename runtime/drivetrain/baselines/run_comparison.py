"""Compares the network of a finished run with simple models, in the process that trained it.

The process already has the samples and the network. Another process would need seconds for them, and user code might
build a different network. No error here can harm the run, because its model and its result are already written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from drivetrain.baselines.measure import fit_simple_models
from drivetrain.baselines.paired_errors import NetworkOutputs, compute_network_outputs
from drivetrain.errors import Stopped
from drivetrain.models import safetensors_file
from drivetrain.pretrained.earlier_run import WEIGHTS
from drivetrain.report import baseline_results
from drivetrain.report.baseline_results import Baseline, Skipped
from drivetrain.system.console import say
from drivetrain.system.fault_points import fault_point
from drivetrain.system.run_files import MODEL, RESULT_FILE, RunFiles
from drivetrain.system.run_records import Best, RunResult, read_mapping
from drivetrain.system.signals import raise_stopped
from drivetrain.system.timeout import TimedOut, time_limit
from drivetrain.tasks import modality_of
from drivetrain.training.run import Run
from drivetrain.training.time_target import MAX_SIMPLE_MODELS_SECONDS, SIMPLE_MODELS_SHARE

MIN_SECONDS, MAX_SECONDS = 15.0, MAX_SIMPLE_MODELS_SECONDS
"""Bounds of the time for fitting: nobody waits minutes for a comparison."""
GRACE_SECONDS = 30.0
"""Additional time for the import of scikit-learn and for a fit that takes longer than expected."""
REPORT_SECONDS = 2.0
"""Seconds of `train.within` for the report."""
LEAST_SECONDS = 1.0
"""Minimum time of `train.within` needed to fit a simple model."""
NETWORK_SHARE = 0.2
"""Largest share of the time for the outputs of the network."""
ADVICE = "with `baselines: full` in the job there is no such limit, nor for `drivetrain bench models JOB`"


def compare_run(run: Run) -> None:
    """Fit the simple models; print their metric next to the network's, best first, and a verdict."""
    result = RunResult.read(run.folder)
    best = result.best
    if "off" in (run.job.baselines, os.environ.get(baseline_results.SWITCH)) or best is None:
        return
    if run.job.baselines == "full":
        seconds = limit = inf
    else:
        seconds = min(MAX_SECONDS, max(MIN_SECONDS, SIMPLE_MODELS_SHARE * (result.seconds or 0.0)))
        limit = seconds + GRACE_SECONDS
        if run.time_target:
            available = run.time_target.seconds - run.time_target.read_clock() - REPORT_SECONDS
            seconds, limit = min(seconds, available), min(limit, available)
    if limit < LEAST_SECONDS:
        say("baselines: skipped, the train.within time is used up; `drivetrain bench models JOB` fits them")
        return
    time_words = "as long as they take" if seconds == inf else f"up to {seconds:.0f} s"
    say(f"baselines: fitting simple models to the same samples, {time_words} (baselines: off skips them)")
    failure = _fit_within(run, seconds, limit)
    _say_verdict(run, best, result)
    if failure:
        say(f"baselines: {failure}; {ADVICE}")


def _fit_within(run: Run, seconds: float, limit: float) -> str:
    """Fit and record the simple models; returns the reason if not all were fitted, else an empty text."""
    try:
        with raise_stopped(), time_limit(limit) if limit < inf else contextlib.nullcontext():
            _fit(run, seconds)
    except TimedOut:
        return f"not all were fitted in {limit:.0f} s"
    except Stopped as stop:
        return f"{stop.given}; the run is complete"
    except Exception as error:
        return f"not all simple models could be fitted: {error}"
    return ""


def _fit(run: Run, seconds: float) -> None:
    """Fit the simple models; each result is written at once, so that a later problem does not lose it."""
    fault_point("baselines")
    data, outcomes, files = run.readable, list[Baseline | Skipped](), RunFiles(run.folder)
    test_samples = len(data.test.split) if data.test else None
    for outcome in fit_simple_models(
        run.job,
        data,
        seconds,
        free_memory=run.hardware.memory.available,
        compute_network_outputs=lambda: dict(_compute_outputs(run, NETWORK_SHARE * seconds)),
    ):
        outcomes.append(outcome)
        content = baseline_results.to_json(
            outcomes,
            samples=len(data.validation),
            seconds=seconds,
            test_samples=test_samples,
            time_order=data.preprocessing.get("time_order", ""),
        )
        files.write_json(RESULT_FILE, files.read_object(RESULT_FILE) | {"baselines": content})


def _compute_outputs(run: Run, seconds: float) -> Iterator[tuple[str, NetworkOutputs]]:
    """Compute the outputs of the best weights for some of the evaluated samples; an error is only printed."""
    if getattr(run.job.data, "groups", None):
        # Samples of a group are alike, so the chance would be underestimated; their groups are no longer known.
        return
    data = run.readable
    splits = {"validation/": (data.validation, data.prepare)}
    if data.test:
        splits["test/"] = data.test.split, data.test.prepare
    try:
        run.model.load_state_dict(safetensors_file.read(run.folder / MODEL / WEIGHTS))
        run.model.eval()
        for prefix, (split, prepare) in splits.items():
            outputs = compute_network_outputs(run.model, data.heads, split, prepare, run.device, seconds / len(splits))
            if outputs:
                yield prefix, replace(outputs, has_neighbors=modality_of(run.job).is_ordered)
    except Exception as error:
        # The simple models have metrics anyway.
        say(f"baselines: the chance in the differences could not be estimated: {error}")


def _say_verdict(run: Run, best: Best, result: RunResult) -> None:
    metrics = {best.metric: best.value, **best.metrics, **result.test}
    baselines = read_mapping(RunFiles(run.folder).read_object(RESULT_FILE), "baselines")
    network_name = str(getattr(getattr(run.job, "model", None), "name", ""))
    comparison = baseline_results.compare_network(baselines, best.metric, metrics, network_name)
    if comparison:
        say(f"baselines: {comparison.metric}: {comparison.format_line()}")
        say(f"baselines: {comparison.describe_verdict()}")
