"""How the scripts of several engines notice that a node has lost its training, and how long the others get to end."""

SILENCE = "silence=60  # seconds that all nodes get to end after one has"
"""A line of the script; training itself notices a loss within 60 seconds."""

LOST = r"""
# Whether a node has lost its training.
lost() {
    local end
    for end in "$ends"/[0-9]*; do
        if [ -e "$end" ]; then case "$(cat "$end")" in 0 | 75) ;; *) return 0 ;; esac; fi
    done
    return 1
}
"""
"""A function of the script. In the folder $ends, each node that has ended has a file with its exit code."""
