"""The fault harness: real processes are killed, signalled and starved, and what they leave is compared bit by bit."""
