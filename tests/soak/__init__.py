"""``make soak``: work of every kind while something is killed every few seconds, then whether all of it adds up.

``python -m tests.soak --seconds 600 [--host q2] [--seed N] [--json FILE]``, with ``TEST_DB=sqlite`` or ``postgres``.
Ends with 1 when a crash point was not hit, or something does not add up. What it starts it ends.
"""
