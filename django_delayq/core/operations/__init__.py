"""What operators ask of a queue: looking (inspector, search, views, columns), repairing, checking, resharding.

Nothing here is on the way of a job from ``schedule`` to ``ack``. Imported by ``core.broker``, the read models,
``repair``, ``pipeline`` and the entry points.
"""
