"""Faults that the tests must catch: a list of slips in the package (``faults.toml``), and the program that tries them.

``python -m tests.faults`` copies the project, puts one fault into the copy, runs the tests that must fail
there, and reports each fault as caught or survived. The working tree is never changed.
"""
