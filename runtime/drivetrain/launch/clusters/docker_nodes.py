"""Other Docker engines, by their contexts: a script that runs one container on each and waits for all of them."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path

from drivetrain.distributed.placement import parse_meet
from drivetrain.errors import SpecError
from drivetrain.job import dot_key
from drivetrain.job.remote_data import list_remote_paths
from drivetrain.job.values import parse_duration
from drivetrain.launch import run_secrets
from drivetrain.launch.clusters import grace_period, mounted_files, store_access
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.launch.clusters.lost_nodes import LOST, SILENCE
from drivetrain.launch.clusters.site import NodesSite
from drivetrain.pretrained import hub_name
from drivetrain.storage import store_variables
from drivetrain.system import secrets
from drivetrain.system.units import parse_bytes

BODY = (
    r"""
for each in "${variables[@]}"; do
    if [ -z "${!each:-}" ]; then
        echo "$each is not set, and this script hands it to the containers
  possible: the variables of the job and of its stores: ${variables[*]}
  do:       export $each, and start this script again" >&2
        exit 2
    fi
done
for each in "${files[@]}"; do
    if [ ! -r "${!each}" ]; then
        echo "$each: the file ${!each} cannot be read here
  possible: a file with a credential, which the containers get
  do:       correct it, and start this script again" >&2
        exit 2
    fi
done
on() { docker --context "${contexts[$1]}" "${@:2}"; }  # on NODE WORDS: docker on the engine of a node
answers() { timeout "$patience" docker --context "${contexts[$1]}" version > /dev/null 2>&1; }
numbers=("${!contexts[@]}")  # of the engines that take part in an attempt
ends=$(mktemp -d) || exit 7
stopped=

remove() { local i; for i in "${numbers[@]}"; do on "$i" rm --force "$name-$i" > /dev/null 2>&1; done; }
stop() { stopped=yes; local i; for i in "${numbers[@]}"; do on "$i" stop --time "$grace" "$name-$i" > /dev/null 2>&1 & done; }
# Not in a child that is ended before it has reset its traps.
trap 'if [ "$BASHPID" = "$$" ]; then rm -rf "$ends"; remove; fi' EXIT
trap stop TERM INT HUP

# The end of one node into a file; a connection that breaks is no end.
await() {
    local code
    while :; do
        if code=$(on "$1" wait "$name-$1" 2> /dev/null); then break; fi
        on "$1" inspect "$name-$1" > /dev/null 2>&1 || { code=8; on "$1" version > /dev/null 2>&1 && break; }
        sleep 2
    done
    echo "$code" > "$ends/new-$1" && mv "$ends/new-$1" "$ends/$1"
}
"""
    + LOST
    + r"""
# How many nodes have ended.
ended() { find "$ends" -name '[0-9]*' | wc -l; }

# The values go through a pipe into a file in the memory of a container, which only its user can read.
put() { on "$1" exec --interactive "$name-$1" sh -c "umask 077 && cat > $secrets/$2"; }
hand_over() {
    local each
    if [ "${#variables[@]}" = 0 ]; then return; fi
    for each in "${variables[@]}"; do
        case " ${files[*]} " in
            *" $each "*) put "$1" "$each$content" < "${!each}" || return 1 ;;
            *) printf %s "${!each}" | put "$1" "$each" || return 1 ;;
        esac
    done
    put "$1" "$ready" < /dev/null
}

# Sets $numbers to the engines that answer; fails if they are too few, or the first is not among them.
gather() {
    local i there=() missing=()
    for i in "${!contexts[@]}"; do if answers "$i"; then there+=("$i"); else missing+=("${contexts[$i]}"); fi; done
    if [ "${#missing[@]}" = 0 ]; then numbers=("${there[@]}"); return; fi
    echo "no Docker engine answers in ${missing[*]}"
    if [ "${there[0]:-}" != 0 ]; then echo "${contexts[0]} leads, and has the run: training cannot go on without it"; return 1; fi
    if [ "${#there[@]}" -lt "$least" ]; then
        echo "training needs $least nodes (limits.nodes of the job), and ${#there[@]} answer"
        return 1
    fi
    echo "training goes on with ${#there[@]} of ${#contexts[@]} nodes"
    numbers=("${there[@]}")
}

# One training on all nodes that answer; sets $code.
attempt() {
    local i node=0 waited=0 gone=0 awaiting=()
    gather || exit 8
    remove
    rm -f "$ends"/*
    for i in "${numbers[@]}"; do
        on "$i" run --detach --name "$name-$i" --env DRIVETRAIN_JOB="$job" --entrypoint sh "${options[@]}" "$image" \
            "${train[@]}" --nodes "${#numbers[@]}" --node "$node" > /dev/null ||
            { code=9; echo "node $i (${contexts[$i]}) starts no container"; return; }
        hand_over "$i" || { code=8; echo "node $i (${contexts[$i]}) did not take the variables"; return; }
        await "$i" & awaiting+=($!)
        node=$((node + 1))
    done
    on 0 logs --follow "$name-0" & local log=$!
    while [ "$(($(ended) + gone))" -lt "${#numbers[@]}" ]; do
        sleep 1
        # The leader ends last, and a loss ends all others within a minute.
        if [ -e "$ends/0" ] || lost; then waited=$((waited + 1)); fi
        if [ "$waited" = 4 ]; then
            for i in "${numbers[@]}"; do if [ ! -e "$ends/$i" ] && ! answers "$i"; then gone=$((gone + 1)); fi; done
            waited=5
        fi
        if [ "$waited" -ge "$silence" ]; then break; fi
    done
    kill "${awaiting[@]}" "$log" 2> /dev/null
    code=8
    if [ -e "$ends/0" ]; then code=$(cat "$ends/0"); fi
    # What all others end with may only follow from what one has found.
    for i in "${numbers[@]}"; do
        if [ "$code" != 0 ] && [ -e "$ends/$i" ]; then
            case "$(cat "$ends/$i")" in [1-7] | 9 | 11) code=$(cat "$ends/$i"); break ;; esac
        fi
    done
    for i in "${numbers[@]}"; do
        if [ "$i" != 0 ] && [ "$code" != 0 ] && [ "$code" != 75 ] && answers "$i"; then
            echo "the last lines of node $i (${contexts[$i]}):"; on "$i" logs --tail 5 "$name-$i" 2>&1
        fi
    done
}

for number in 1 2 3; do
    attempt
    case "$code" in
        0) echo "trained to the end"; exit 0 ;;
        75) echo "stopped early; run this script again to resume"; exit 75 ;;
        8 | 129 | 13? | 14?) ;;
        *) echo "exit $code; another attempt would end in the same way"; exit "$code" ;;
    esac
    if [ -n "$stopped" ]; then break; fi
    echo "a node was lost (exit $code, attempt $number of 3)"
done
exit "$code"
"""
)


SPEC = "/tmp/job"
"""The folder of a container where it writes the job file; in memory, since the image's file system is read-only."""
READY = ".all"
"""The file that says to a container that it has all variables."""
WAIT = (
    f"for i in $(seq 600); do [ -e {secrets.FOLDER}/{READY} ] && break; sleep 0.1; done; "
    f"[ -e {secrets.FOLDER}/{READY} ] || {{ echo 'the starter handed over no variables within a minute'; exit 8; }}"
)
"""A container begins when it has the variables: `docker run` could give them only where `docker inspect` shows them."""
CACHE = "/cache/compile"
"""What a job fetches and compiles, in a container."""
MAX_PROCESSES = 512
"""Largest number of processes and threads of a container."""


def check(work: ClusterJob, settings: NodesSite, named: str) -> list[str]:
    """Refuse what would fail on the nodes; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    if len(settings.contexts) != work.nodes:
        raise SpecError(
            f"{named}: nodes.contexts has {len(settings.contexts)}, and --nodes is {work.nodes}",
            "one context of Docker for each node",
            "`docker context ls` lists those that there are",
        )
    parse_meet(settings.meet, f"{named}: nodes.meet")
    mounted_files.check(work, settings.runs, list(settings.mounts), f"{named}: nodes.mounts")
    variables = _variables(work)
    lines = store_access.missing(work, variables)
    if variables:
        lines.append(
            f"environment: {', '.join(variables)} (handed to each container, into its memory; the script takes the values "
            "from the environment in which it is started)"
        )
    lines += [
        f"{dot_key(key)}: {text} is fetched into memory, below limits.memory, unless nodes.mounts has a folder for {CACHE}"
        for key, text in list_remote_paths(work.job)
        if CACHE not in settings.mounts
    ]
    return [*lines, grace_period.check(work.job, work.folder / "runs", settings.grace, f"{named}: nodes")]


def _variables(work: ClusterJob) -> list[str]:
    """The variables that the containers get: those the job names, and those of its stores and of the hub that are set here."""
    hub = hub_name.find_hub_weights(work.job) is not None or bool(hub_name.list_hub_data(work.job))
    tokens = [name for name in run_secrets.HUB if hub and os.environ.get(name)]
    return list(dict.fromkeys([*work.job.environment, *store_access.names(work), *tokens]))


def script(work: ClusterJob, settings: NodesSite) -> str:
    """The script; it holds names of variables, never their values."""
    variables = _variables(work)
    spec = f"{SPEC}/{work.spec.name}"
    command = [*work.command(["python", "-m", "drivetrain"], spec), "--runs", settings.runs]
    # The job file travels as a variable: nothing has to be copied to the nodes first.
    write = f'mkdir -p {SPEC} && printf %s "$DRIVETRAIN_JOB" > {shlex.quote(spec)} && exec "$@"'
    if variables:
        write = f"{WAIT} && {write}"
    lines = [
        "#!/bin/bash",
        f"# Trains {work.job.name} on {work.nodes} Docker engines; written by `drivetrain launch --on nodes`.",
        "# Exit codes of training decide: 0 done; 75 stopped early, start this script again; 8 and kills, up to three attempts;",
        "# 2 to 7 and 9 would end in the same way.",
        f"contexts=({shlex.join(settings.contexts)})  # the first leads, and writes the run",
        f"least={work.least}  # nodes with which training begins or goes on if others do not answer",
        "patience=20  # seconds that an engine gets to answer",
        f"name={shlex.quote(f'drivetrain-{work.job.name}')}",
        f"job={shlex.quote(work.content)}",
        f"options=({shlex.join(_options(work, settings))})",
        f"image={shlex.quote(settings.image)}",
        f"variables=({shlex.join(variables)})  # handed over from the environment of this script",
        f"secrets={secrets.FOLDER} content={secrets.CONTENT} ready={READY}",
        f"files=({shlex.join(name for name in variables if name in store_variables.FILES)})  # those that name a file",
        f"train=(-c {shlex.quote(write)} sh {shlex.join(command)} --meet {shlex.quote(settings.meet)})",
        f"grace={math.ceil(parse_duration(settings.grace))}  # seconds between the signal and the end of a container",
        SILENCE,
    ]
    return "\n".join(lines) + "\n" + BODY


def _options(work: ClusterJob, settings: NodesSite) -> list[str]:
    """The options of docker run: limits, and the hardening that every container of training has."""
    limits = work.job.limits
    memory = f"{math.ceil(parse_bytes(limits.memory or '4g') / 2**20)}m"
    options = [
        *(
            "--init",
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges:true",
            f"--pids-limit={MAX_PROCESSES}",
        ),
        "--ulimit=core=0",
        f"--user={settings.user}:{settings.user}",
        # The processes choose ports of their own, and other nodes have to reach them.
        "--network=host",
        f"--cpus={limits.cpus or 2:g}",
        f"--memory={memory}",
        f"--memory-swap={memory}",
        f"--shm-size={math.ceil(parse_bytes(limits.shm or '256m') / 2**20)}m",
        "--tmpfs=/tmp:exec,mode=1777",
        "--tmpfs=/cache:exec,mode=1777",
        *(f"--volume={source}:{at}" for at, source in settings.mounts.items()),
    ]
    if _variables(work):
        options.append(f"--tmpfs={secrets.FOLDER}:mode=0700,uid={settings.user},gid={settings.user}")
    if work.gpus:
        options.append(f"--gpus={work.per_node}")
    return [*options, *settings.options]


def submit(work: ClusterJob, path: Path) -> list[str]:
    """The command that runs the script."""
    return ["bash", str(path)]


def follow(work: ClusterJob) -> str:
    """What shows the progress of the job."""
    return "the script prints what node 0 says"
