"""The contest: rows, contenders as live processes, and the race between them; `benchmarks/peers.py` is its command."""
