"""The part of a batch script that is the same for all jobs: train, and decide by the exit code what follows."""

from runtime.launch.clusters.lost_nodes import LOST

BODY = (
    r"""
# The end of each node's training, by the number of the node: srun waits for a node that is gone, this script does not.
ends="$PWD/runs/.slurm-$SLURM_JOB_ID"
# A process of `ask` that is ended before it has reset its traps would remove them under this shell.
trap 'if [ "$BASHPID" = "$$" ]; then rm -rf "$ends" "$copy"; fi' EXIT
# Slurm itself ends this job: scancel, preemption, or a time limit that came before training had saved.
trap 'ending=yes' TERM

# Runs on each node. Depending on the cluster, Slurm signals this shell alone, or every process.
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
# Ask the nodes whose training has not ended; those that do not answer are noted.
ask() {
    local i
    for i in "${!hosts[@]}"; do
        if [ ! -e "$ends/$i" ]; then { answers "${hosts[i]}" || echo > "$ends/dead-$i"; } & asking+=($!); fi
    done
}
# Whether some nodes do not answer, and all others have ended.
alone() {
    local i dead=1
    for i in "${!hosts[@]}"; do
        if [ -e "$ends/$i" ]; then continue; elif [ -e "$ends/dead-$i" ]; then dead=0; else return 1; fi
    done
    return "$dead"
}

# One training on $hosts; sets $code, $unreachable if a node neither trains nor ends, and $rest to the others.
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
        # The leader ends last, and a loss ends all others within a minute.
        if [ -e "$ends/0" ] || lost; then waited=$((waited + 2)); fi
        if [ "$waited" = 2 ]; then ask; fi
        if [ "$waited" -ge "$silence" ] || alone; then unreachable=yes; kill -KILL "$step"; break; fi
    done
    if [ "${#asking[@]}" -gt 0 ]; then kill "${asking[@]}" 2>/dev/null; fi
    while wait "$step" 2>/dev/null; code=$?; kill -0 "$step" 2>/dev/null; do :; done
    # What the others did after a leader that has finished does not matter.
    if [ -e "$ends/0" ] && [ "$(cat "$ends/0")" = 0 ]; then code=0; return; fi
    for i in "${!hosts[@]}"; do
        # Without an end, training was killed there, or the node is gone.
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
        8 | 129 | 13? | 14?) ;;
        *) echo "slurm job $SLURM_JOB_ID: exit $code; another attempt would end in the same way"; exit "$code" ;;
    esac
    if [ -n "$ending" ]; then break; fi
    if [ -n "$unreachable" ]; then
        if [ "${#rest[@]}" -lt "$least" ] || [ "$number" = 3 ]; then break; fi
        echo "slurm job $SLURM_JOB_ID: a node does not answer; training goes on with ${#rest[@]} of ${#hosts[@]}: ${rest[*]}"
        hosts=("${rest[@]}")
        continue
    fi
    echo "slurm job $SLURM_JOB_ID: a process was lost (exit $code, attempt $number of 3 in this allocation)"
done
if [ -n "$ending" ]; then
    echo "slurm job $SLURM_JOB_ID: ended by Slurm, exit $code; sbatch resumes the run"
elif [ "$code" = 75 ] || [ -n "$unreachable" ]; then
    echo "slurm job $SLURM_JOB_ID: exit $code${unreachable:+, a node does not answer}; queued again"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
)
