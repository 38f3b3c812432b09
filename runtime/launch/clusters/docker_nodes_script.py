"""The part of the script for several Docker engines that is the same for all jobs: train, and decide by the exit codes."""

from runtime.launch.clusters.lost_nodes import LOST

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
