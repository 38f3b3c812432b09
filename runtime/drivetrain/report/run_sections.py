"""The sections on how a run was made: its plan, data, time and memory, events, machine, sources and job file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from drivetrain import optimizations
from drivetrain.hardware.facts import Hardware
from drivetrain.plan.plan import Decision, Plan
from drivetrain.report.blocks import Block, Chart, Details, Section, Table, Text, Tone
from drivetrain.report.formatting import format_duration, format_json, format_share, shorten
from drivetrain.report.log_series import Series
from drivetrain.report.record import Record, Summary
from drivetrain.system.run_records import RunState, read_mapping
from drivetrain.system.units import format_bytes

_PHASES = {"train": "backward", "evaluate": "evaluation", "tune": "tuning"}
"""Names of phases if the trainer times forward, backward and update separately."""
_MAX_EVENTS = 200
_MAX_SPEC = 200_000
"""Characters of a job file that is shown."""
_MAX_CODE_FILES = 30
"""Files of code that are named."""


def list_run_sections(record: Record, summary: Summary) -> Iterator[Section]:
    """Yield the sections that have content, in reading order."""
    if record.plan:
        yield Section("Plan", [*_list_plan(record.plan)])
    if rows := _list_data(record):
        yield Section("Data and model", (Table(("item", "value"), rows),))
    if time_blocks := [*list_time(record, summary)]:
        yield Section("Time and memory", time_blocks)
    if record.events:
        yield Section("Events", [*_list_events(record.events)])
    if origin := [*_list_origin(record)]:
        yield Section("Made from", origin, is_folded=True)


def _list_plan(plan: Plan) -> Iterator[Block]:
    """Yield every decision with value, source, effect and reason; settings with another effective value stand out."""
    yield from (Text(format_json(note), Tone.WARN) for note in plan.notes)
    off, changed = optimizations.off_values(), dict(list_differences(plan))
    idle = [d for d in plan.decisions if d.value == off.get(d.name, d) and d.source != "job" and d.name not in changed]
    decisions = [decision for decision in plan.decisions if decision not in idle]
    tones = {row: Tone.WARN for row, decision in enumerate(decisions) if decision.name in changed}
    rows = tuple(_format_decision(decision, changed.get(decision.name)) for decision in decisions)
    if rows:
        yield Table(("setting", "value", "source", "effect", "reason"), rows, tones)
    if idle:
        cells = (_format_decision(decision, None) for decision in idle)
        lines = (f"{name}: {value} ({source}): {reason}" for name, value, source, _, reason in cells)
        yield Details(f"{len(idle)} settings that are off, with the reason of each", "\n".join(lines))
    if any(decision.provisional for decision in plan.decisions):
        yield Text("Values with a question mark are provisional: the model and the data were not loaded.", Tone.QUIET)


def _format_decision(decision: Decision, difference: Mapping[str, object] | None) -> tuple[str, ...]:
    value = format_json(decision.value) + (" ?" if decision.provisional else "")
    reason = f"{decision.reason} [{decision.evidence}]" if decision.evidence else decision.reason
    if difference:
        value = f"requested {format_json(difference.get('asked'))}, effective {format_json(difference.get('seen'))}"
        reason = f"not in effect: {difference.get('cause') or 'the cause is unknown'}; {reason}"
    name, source, effect = map(format_json, (decision.name, decision.source, decision.effect))
    return name, value, source, effect, format_json(reason)


def list_differences(plan: Plan | None) -> list[tuple[str, Mapping[str, object]]]:
    """List the settings whose effective value differs from the requested one."""
    rows = plan.seen.items() if plan else ()
    return [
        (format_json(name), row)
        for name, row in rows
        if isinstance(row, Mapping) and "asked" in row and not row.get("same", row["asked"] == row.get("seen"))
    ]


def _list_data(record: Record) -> tuple[tuple[str, str], ...]:
    """List the notes on the data (sizes, skipped samples, lengths of texts), and the network."""
    notes, model = record.result.get("data"), record.result.get("model")
    rows = []
    for note in notes if isinstance(notes, list) else ():
        name, _, value = format_json(note).partition(": ")
        rows.append((name, value) if value else ("samples", name))
    return (*rows, *([("network", format_json(model))] if model else []))


def list_time(record: Record, summary: Summary) -> Iterator[Block]:
    """Yield the time by phase beside the forecast, and throughput and memory over time."""
    telemetry = record.telemetry
    if summary.phases:
        total = summary.seconds or 0.0
        phases = {**summary.phases, "other": total - sum(summary.phases.values())}
        names = _PHASES if "forward" in phases else {}
        rows = (
            (
                format_json(names.get(name, name)),
                format_duration(seconds),
                format_share(seconds / total if total else 0.0),
            )
            for name, seconds in phases.items()
            if seconds > 0
        )
        yield Table(("phase", "time", "share"), tuple(rows))
    yield from _describe_forecast(summary)
    charts = _make_charts(telemetry, summary)
    yield from (chart for chart in charts if any(len(line) > 1 for line in chart.lines))
    yield from _list_throttled_gpus(telemetry)


def _describe_forecast(summary: Summary) -> Iterator[Text]:
    """Say what the first steps forecast."""
    forecast = summary.forecast
    if {"seconds", "low", "high", "steps", "error_percent"} <= forecast.keys():
        seconds, low, high = (format_duration(forecast[key]) for key in ("seconds", "low", "high"))
        yield Text(
            f"After {int(forecast['steps']):,} steps {seconds} were forecast ({low} to {high}) for the training, which took "
            f"{format_duration(summary.seconds)}: an error of {forecast['error_percent']:+.1f} %.",
            Tone.QUIET,
        )


def _make_charts(telemetry: Mapping[str, Series], summary: Summary) -> list[Chart]:
    ends = [series.xs[-1] for series in telemetry.values() if series]
    axis, scale = ("minutes", 1 / 60) if max(ends, default=0.0) >= 300 else ("seconds", 1.0)

    def list_lines(unit: float, **names: str) -> tuple[Series, ...]:
        return tuple(telemetry[key].scale(name, scale, unit) for key, name in names.items() if telemetry.get(key))

    top = max([summary.peak_memory or 0.0, summary.memory_limit or 0.0, *telemetry.get("memory_used", Series("")).ys])
    unit, size = ("GiB", 2.0**30) if top >= 2**30 else ("MiB", 2.0**20)
    limit = ("limit", summary.memory_limit / size) if summary.memory_limit else None
    gpus = [key.removesuffix("_percent") for key in telemetry if re.fullmatch(r"gpu\d*_percent", key)]
    memory = list_lines(1 / size, process_memory="processes", memory_used="container")
    gpu_memory = list_lines(1 / 2.0**30, **{f"{gpu}_memory": gpu for gpu in gpus or ["gpu"]})
    gpu_limit = telemetry.get("gpu_memory_limit")
    speed = tuple(line.keep_positive() for line in list_lines(1.0, samples_per_second="samples/s"))
    return [
        Chart("Throughput, samples/s", axis, speed, from_zero=True),
        Chart(f"Memory, {unit}", axis, memory, limit, from_zero=True),
        Chart("GPU busy, %", axis, list_lines(1.0, **{f"{gpu}_percent": gpu for gpu in gpus}), from_zero=True),
        Chart(
            "GPU memory, GiB",
            axis,
            gpu_memory,
            ("limit", gpu_limit.ys[-1] / 2.0**30) if gpu_limit else None,
            from_zero=True,
        ),
    ]


def _list_throttled_gpus(telemetry: Mapping[str, Series]) -> Iterator[Text]:
    """Warn of each GPU whose clock was reduced."""
    for key, throttled in telemetry.items():
        if re.fullmatch(r"gpu\d*_throttled", key) and any(throttled.ys):
            name, share = key.partition("_")[0].upper(), format_share(sum(throttled.ys) / len(throttled))
            text = f"{name}: its clock was throttled in {share} of the readings; telemetry.jsonl lists the reasons."
            yield Text(text, Tone.WARN)


def _list_events(events: Sequence[Mapping[str, object]]) -> Iterator[Block]:
    """Yield the events next to the steps: signals, retries, fallbacks."""
    rows = []
    for event in events[-_MAX_EVENTS:]:
        time = event.get("time")
        moment = format_duration(time) if isinstance(time, float) and time < 1e9 else format_json(time)
        rows.append((moment, format_json(event.get("kind")), shorten(format_json(event.get("text")), 500)))
    if len(events) > _MAX_EVENTS:
        yield Text(f"The last {_MAX_EVENTS} of {len(events)} events; events.jsonl contains all of them.", Tone.QUIET)
    yield Table(("time", "kind", "event"), tuple(rows))


def _list_origin(record: Record) -> Iterator[Block]:
    """Yield the machine, how the run was started, the digests of its sources, and the complete job file."""
    machine = describe_machine(record.hardware) if record.hardware else {}
    rows = [*machine.items(), *_list_start(record.state), *_list_sources(record)]
    if rows:
        yield Table(("item", "value"), tuple((name, format_json(value)) for name, value in rows))
    if record.made_from:
        run = f"runs/{record.name}"
        command = f"`drivetrain train {run}/job.yaml --plan {run}/plan.json`"
        text = f"{command} trains it again; `compare` says whether the bits are the same."
        yield Text(text, Tone.QUIET)
    if record.text:
        is_long = len(record.text) > _MAX_SPEC
        text = record.text[:_MAX_SPEC] + ("\n… see job.yaml for the rest" if is_long else "")
        yield Details("The complete job file, including all defaults", text)


def describe_machine(hardware: Hardware) -> dict[str, object]:
    """Describe the resources that the run could use."""
    cpu, memory, gpus = hardware.cpu, hardware.memory, hardware.gpus
    return {
        "processor": cpu.model,
        "CPUs": f"{cpu.budget} of {cpu.host}",
        "memory limit": format_bytes(memory.limit) if memory.limit else "none",
        "GPU": hardware.gpu_trouble or ", ".join(f"{gpu.name}, {format_bytes(gpu.memory)}" for gpu in gpus) or "none",
        "image": hardware.image or "none",
        "torch": hardware.torch.version if hardware.torch else "none",
    }


def _list_start(state: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    names = {"source": "job file", "set": "overrides (--set)", "command": "command", "attempts": "attempts"}
    for key, name in (names | {"started": "started", "ended": "ended"}).items():
        if value := state.get(key):
            yield name, shlex.join(map(str, value)) if isinstance(value, list) else value


def _list_sources(record: Record) -> Iterator[tuple[str, object]]:
    made_from, commits = record.made_from, RunState(record.state).commits
    if not made_from:
        return
    yield "commit of the job's folder", commits[0] if commits else "not under git"
    yield from (("commit when it was resumed", later) for later in commits[1:])
    if image_id := read_mapping(made_from, "image").get("id"):
        yield "image ID", image_id
    versions = {name: made_from.get(name) for name in ("drivetrain", "python") if made_from.get(name)}
    yield "versions", ", ".join(f"{name} {format_json(version)}" for name, version in versions.items())
    code = list(read_mapping(made_from, "code").items())
    digests = [*read_mapping(made_from, "data").items(), *code[:_MAX_CODE_FILES]]
    yield from ((f"SHA-256 of {format_json(key)}", digest) for key, digest in digests)
    if code[_MAX_CODE_FILES:]:
        yield "more code", f"{len(code) - _MAX_CODE_FILES} files, in state.json"
    if made_from.get("model"):
        yield "SHA-256 of the weights", made_from["model"]
