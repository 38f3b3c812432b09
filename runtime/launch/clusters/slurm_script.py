"""The part of a batch script that is the same for all jobs: train, and decide by the exit code what follows."""

from runtime.launch.clusters.lost_nodes import LOST

BODY = (
    r"""
# The end of each node's training, by the number of the node: srun waits for a node that is gone, this script does not.
ends="$PWD/runs/.slurm-$SLURM_JOB_ID"
trap 'rm -rf "$ends"' EXIT
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
# One training on all nodes; sets $code, and $unreachable if a node neither trains nor ends.
attempt() {
    rm -rf "$ends"; mkdir -p "$ends" || exit 7
    srun --no-kill --kill-on-bad-exit=0 --wait=0 --ntasks-per-node=1 --cpu-bind=none \
        ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "${srun_options[@]}" \
        bash -c "$node" "$ends" "${train[@]}" &
    local step=$! waited=0
    unreachable=
    while kill -0 "$step" 2>/dev/null; do
        sleep 2
        # The leader ends last, and a loss ends all others within a minute.
        if [ -e "$ends/0" ] || lost; then waited=$((waited + 2)); fi
        if [ "$waited" -ge "$silence" ]; then unreachable=yes; kill -KILL "$step"; break; fi
    done
    while wait "$step" 2>/dev/null; code=$?; kill -0 "$step" 2>/dev/null; do :; done
    if [ -n "$unreachable" ]; then code=8; fi
    # What the others did after a leader that has finished does not matter.
    if [ -e "$ends/0" ] && [ "$(cat "$ends/0")" = 0 ]; then code=0; fi
}

mkdir -p runs
for number in 1 2 3; do
    attempt
    case "$code" in
        0) echo "slurm job $SLURM_JOB_ID: trained to the end"; exit 0 ;;
        75) break ;;
        8 | 129 | 13? | 14?) ;;
        *) echo "slurm job $SLURM_JOB_ID: exit $code; another attempt would end in the same way"; exit "$code" ;;
    esac
    if [ -n "$ending" ] || [ -n "$unreachable" ]; then break; fi
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
