"""Short fault campaign: real workers under kills, Redis restarts and cut connections, and a check of what happened.

``python -m tests.chaos [--seconds 60] [--seed N]``. The program schedules, cancels and reschedules jobs while faults
strike, waits until the queue is empty, and compares its own record with the trace that the tasks left
(:mod:`.history`). Exit code 1 if a promise was broken.
"""
