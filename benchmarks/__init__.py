"""Side-by-side measurements of the queue against peers and against the bare server.

``python -m benchmarks NAME`` runs one, ``python -m benchmarks all`` runs every one. Each starts a private redis-server,
prints a table and one JSON line. Absolute numbers belong to the machine; what travels are ratios within one run.
"""
