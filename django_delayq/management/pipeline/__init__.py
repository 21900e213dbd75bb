"""Subcommands of ``manage.py delayq_pipeline``: one module each, which connects the pipeline to Django's settings.

A module has ``HELP`` (a sentence), ``add_arguments(parser)`` and ``run(command, options) -> int | None``, which returns
the exit code. No module imports Spark before its ``run``, so that ``--help`` and the advice what to install work
without it. Only the command ``delayq_pipeline`` imports the modules.
"""
