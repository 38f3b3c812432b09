"""Slurm: a batch script that sbatch takes, trains on all nodes of its allocation and queues itself again if it should."""

from __future__ import annotations

import base64
import math
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import COPY_VARIABLE
from drivetrain.launch.clusters import grace_period, shared_folders, store_access
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.launch.clusters.lost_nodes import LOST, SILENCE
from drivetrain.launch.clusters.site import SlurmSite, flag
from drivetrain.storage import store_variables
from drivetrain.system.units import parse_bytes

BODY = (
    r"""
# Set above: train (the command), srun_options, least (nodes), silence and patience (seconds), copy (a folder).
# Set below: hosts (the nodes that train), code (the exit code of an attempt), and what the comments name.

# Each node writes its exit code here when its training ends, into a file named after the number of the node. This
# script watches the files, because srun would wait forever for a node that is gone.
ends="$PWD/runs/.slurm-$SLURM_JOB_ID"
# Only this shell removes them: a child of `ask` that is killed before it has reset its traps would run this one, too.
trap 'if [ "$BASHPID" = "$$" ]; then rm -rf "$ends" "$copy"; fi' EXIT
# Set if Slurm ends this job: scancel, preemption, or a time limit that came before training had saved.
trap 'ended_by_slurm=yes' TERM

# Runs on each node. Depending on the cluster, Slurm signals this shell alone, or every process.
# `wait` returns early when a signal arrives; then it waits again, for the exit code of training.
node='
trap "signalled=yes; kill -TERM \$training 2>/dev/null" TERM
"$@" & training=$!
while signalled=; wait "$training"; code=$?; [ -n "$signalled" ]; do :; done
echo "$code" > "$0/new-$SLURM_NODEID" && mv "$0/new-$SLURM_NODEID" "$0/$SLURM_NODEID"
exit "$code"'
"""
    + LOST
    + r"""
# Whether a node answers: a step that does nothing ends there.
answers() { timeout --kill-after=1 "$patience" srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" true > /dev/null 2>&1; }
# Ask the nodes whose training has not ended, in the background; those that do not answer are noted.
ask() {
    local i
    for i in "${!hosts[@]}"; do
        if [ ! -e "$ends/$i" ]; then { answers "${hosts[i]}" || echo > "$ends/dead-$i"; } & asking+=($!); fi
    done
}
# Whether some nodes do not answer, and all others have ended.
only_dead_nodes_are_left() {
    local i status=1  # as in every shell, 0 is yes
    for i in "${!hosts[@]}"; do
        if [ -e "$ends/$i" ]; then continue; elif [ -e "$ends/dead-$i" ]; then status=0; else return 1; fi
    done
    return "$status"
}

# One training on $hosts; sets $code, $unreachable if a node neither trains nor ends, and $rest to the nodes that answer.
attempt() {
    rm -rf "$ends"; mkdir -p "$ends" || exit 7
    srun --nodes="${#hosts[@]}" --nodelist="$(IFS=,; echo "${hosts[*]}")" \
        --no-kill --kill-on-bad-exit=0 --wait=0 --ntasks-per-node=1 --cpu-bind=none \
        ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "${srun_options[@]}" \
        bash -c "$node" "$ends" "${train[@]}" &
    local step=$! waited=0 asking=() i
    unreachable= rest=()
    while kill -0 "$step" 2>/dev/null; do
        sleep 2
        # The leader is the last to end, and a loss makes all others end: from either on, they get $silence seconds.
        if [ -e "$ends/0" ] || lost; then waited=$((waited + 2)); fi
        # Once, in the first of these rounds.
        if [ "$waited" = 2 ]; then ask; fi
        if [ "$waited" -ge "$silence" ] || only_dead_nodes_are_left; then
            unreachable=yes
            kill -KILL "$step"
            break
        fi
    done
    if [ "${#asking[@]}" -gt 0 ]; then kill "${asking[@]}" 2>/dev/null; fi
    # A signal to this shell ends `wait` while the step still runs; its exit code is that of the last `wait`.
    while
        wait "$step" 2>/dev/null
        code=$?
        kill -0 "$step" 2>/dev/null
    do :; done
    # What the others did after a leader that has finished does not matter.
    if [ -e "$ends/0" ] && [ "$(cat "$ends/0")" = 0 ]; then code=0; return; fi
    for i in "${!hosts[@]}"; do
        # On a node that wrote no exit code, training was killed, or the node is gone; whether it answers tells which.
        if [ -e "$ends/$i" ] || { [ -z "$unreachable" ] && answers "${hosts[i]}"; }; then rest+=("${hosts[i]}"); fi
    done
    if [ "${#rest[@]}" = "${#hosts[@]}" ]; then unreachable=; else unreachable=yes code=8; fi
}

mkdir -p runs
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
for number in 1 2 3; do
    attempt
    case "$code" in
        0) echo "slurm job $SLURM_JOB_ID: trained to the end"; exit 0 ;;
        75) break ;;
        8 | 129 | 13? | 14?) ;;  # a process lost its peers, or was killed by a signal (128 + its number): try again
        *) echo "slurm job $SLURM_JOB_ID: exit $code; another attempt would end in the same way"; exit "$code" ;;
    esac
    if [ -n "$ended_by_slurm" ]; then break; fi
    if [ -n "$unreachable" ]; then
        if [ "${#rest[@]}" -lt "$least" ] || [ "$number" = 3 ]; then break; fi
        echo "slurm job $SLURM_JOB_ID: a node does not answer; training goes on with ${#rest[@]} of ${#hosts[@]}: ${rest[*]}"
        hosts=("${rest[@]}")
        continue
    fi
    echo "slurm job $SLURM_JOB_ID: a process was lost (exit $code, attempt $number of 3 in this allocation)"
done
if [ -n "$ended_by_slurm" ]; then
    echo "slurm job $SLURM_JOB_ID: ended by Slurm, exit $code; sbatch resumes the run"
elif [ "$code" = 75 ] || [ -n "$unreachable" ]; then
    echo "slurm job $SLURM_JOB_ID: exit $code${unreachable:+, a node does not answer}; queued again"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
)
"""The script below the lines of the job; starts training on all nodes, at most three times."""
CPU_OPTIONS = ("cpus-per-task", "exclusive", "cpus-per-gpu")
"""Options of sbatch by which a site sets the CPUs itself; ours is then left out."""
MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu", "exclusive")
"""The same for memory."""
GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
"""The same for GPUs."""


def check(work: ClusterJob, settings: SlurmSite, named: str) -> list[str]:
    """Refuse what would fail on the cluster; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    if settings.time and parse_duration(settings.grace) >= parse_duration(settings.time):
        raise SpecError(
            f"{named}: slurm.grace is {settings.grace}, and slurm.time is {settings.time}",
            "a grace period shorter than the time limit",
            "raise time, or lower grace",
        )
    # The image can be in an option of srun, or a word of the command that starts the container.
    for word in (*settings.srun, *(settings.command or ())):
        _check_image(word, named)
    shared_folders.check(work, settings.shared, named, own_python=settings.command is None)
    lines = [*_note_store_variables(work, settings), *_note_missing_limits(work, settings)]
    return [grace_period.check(work.job, work.folder / "runs", settings.grace, f"{named}: slurm"), *lines]


def _note_store_variables(work: ClusterJob, settings: SlurmSite) -> Iterator[str]:
    """Yield lines about the variables by which the job gets at its stores.

    sbatch hands on the environment of its caller, unless the site says otherwise.
    """
    variables = store_access.names(work)
    exported = str(settings.given.get("export", "ALL"))
    if variables and "ALL" in exported.split(","):
        yield f"submit it from where {', '.join(variables)} is set: sbatch hands it to the job"
    elif variables:
        yield f"slurm.options.export is {exported}: {', '.join(variables)} reaches the job only if it lists the names"
    for scheme in store_access.lacking(work, variables):
        prefix = store_variables.PREFIXES[scheme]
        yield f"no {prefix}... variable is set here: for {scheme}:// export it where the job is submitted, or the nodes need a role"


def _check_image(word: str, named: str) -> None:
    """Refuse an image that a registry can exchange while the job waits."""
    is_option = word.startswith("--container-image=")
    image = word.partition("=")[2] if is_option else word
    is_remote = "://" in image or (is_option and not image.startswith(("/", ".")))
    if is_remote and "@sha256:" not in image:
        raise SpecError(
            f"{named}: slurm: the image {image} is named by a tag",
            "an image file, or an image by its digest: NAME@sha256:...",
            "every attempt then trains with the same code; `docker images --digests` shows digests",
        )


def _note_missing_limits(work: ClusterJob, settings: SlurmSite) -> Iterator[str]:
    for key, requested, names in (
        ("cpus", work.job.limits.cpus, CPU_OPTIONS),
        ("memory", work.job.limits.memory, MEMORY_OPTIONS),
    ):
        if requested is None and not any(name in settings.given for name in names):
            yield f"limits.{key} is not in the job: each node gets the cluster's default"


def script(work: ClusterJob, settings: SlurmSite) -> str:
    """The batch script."""
    lines = [
        "#!/bin/bash",
        f"# Trains {work.job.name} on {work.node_words()}; written by `drivetrain launch --on slurm`.",
        "# Exit codes of training decide: 0 done; 75 stopped early, queued again; 8 and kills, three attempts in this allocation;",
        "# 2 to 7 and 9 would end in the same way.",
        *(f"#SBATCH {shlex.quote(flag(name, value))}" for name, value in _options(work, settings).items()),
        "",
        *settings.setup,
        f"train=({shlex.join(work.command(settings.command))})",
        *_write_carried_files(work),
        f"srun_options=({shlex.join(settings.srun)})",
        f"least={work.least}  # nodes with which training goes on if one is gone",
        SILENCE,
        "patience=10  # seconds that a node gets to answer, when training on the others has ended",
    ]
    return "\n".join(lines) + "\n" + BODY


def _write_carried_files(work: ClusterJob) -> Iterator[str]:
    """Lines that write the job file and the user's code as they are now: they may be edited while the job waits."""
    yield 'copy="$PWD/runs/.job-$SLURM_JOB_ID"'
    yield 'rm -rf "$copy"'
    for name, content in work.files().items():
        # Encoded, since a byte more or less would be another file.
        text = "".join(f"\n{line}" for line in textwrap.wrap(base64.b64encode(content).decode(), 120))
        path = f'"$copy"/{shlex.quote(name)}'
        yield f'mkdir -p "$(dirname {path})" && base64 -d > {path} << END{text}\nEND'
    yield f'train=(env "{COPY_VARIABLE}=$copy" "${{train[@]}}")'


def _options(work: ClusterJob, settings: SlurmSite) -> dict[str, str | int | bool]:
    """The options of sbatch, by their long names."""
    limits = work.job.limits
    grace_seconds = parse_duration(settings.grace)
    options: dict[str, str | int | bool] = {
        "job-name": work.job.name,
        "chdir": str(work.folder),
        "output": str(work.folder / log(work)),
        "open-mode": "append",
        "nodes": f"{work.least}-{work.nodes}" if work.least < work.nodes else work.nodes,
        # With a range of nodes, Slurm would read this option as the least number of nodes.
        **({"ntasks-per-node": 1} if work.least == work.nodes else {}),
        "signal": f"TERM@{math.ceil(grace_seconds)}",
        "requeue": True,
        "no-kill": True,
    }
    if settings.time:
        options["time"] = max(1, math.ceil(parse_duration(settings.time) / 60))
    if limits.cpus and not any(name in settings.given for name in CPU_OPTIONS):
        options["cpus-per-task"] = math.ceil(limits.cpus)
    if limits.memory and not any(name in settings.given for name in MEMORY_OPTIONS):
        options["mem"] = f"{math.ceil(parse_bytes(limits.memory) / 2**20)}M"
    if work.gpus and not any(name in settings.given for name in GPU_OPTIONS):
        options["gpus-per-node"] = work.per_node
    return options | settings.given


def log(work: ClusterJob) -> str:
    """The name of the log below the working folder; %j is the number of the Slurm job."""
    return f"{work.job.name}-%j.log"


def submit(work: ClusterJob, path: Path) -> list[str]:
    """The command that submits the script."""
    return ["sbatch", str(path)]
