"""History of attempts by hour, and of pipeline runs: the tables that the pipeline fills, and queries on them.

Requires Django, not Spark: :mod:`django_delayq.pipeline` computes the rows, this package stores and summarises them.
The API, the admin and the commands of the pipeline import from here.
"""
