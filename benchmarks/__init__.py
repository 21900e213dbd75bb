"""Benchmarks of the queue against peers and against the bare server.

``python -m benchmarks NAME`` runs one, ``python -m benchmarks all`` runs every one. Each starts a private redis-server
and prints a table and one JSON line. Absolute numbers depend on the machine; only ratios within one run are comparable.
"""
