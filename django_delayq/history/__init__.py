"""What became of jobs, hour by hour, and the pipeline's runs: the tables that the pipeline fills and people look at.

Needs Django, and no Spark: :mod:`django_delayq.pipeline` computes, this room keeps and shows.
"""
