"""The subcommands of ``manage.py delayq_pipeline``: a module for each, where the pipeline meets Django's settings.

A module has ``HELP`` (a sentence), ``add_arguments(parser)`` and ``run(command, options) -> int | None``, whose number
is the exit code. None of them imports Spark before its ``run``, so that ``--help`` and the advice what to install work
without it.
"""
