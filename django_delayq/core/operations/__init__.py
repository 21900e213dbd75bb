"""Operations on queues for operators: inspector, search, views, columns, repair, checks, resharding.

No module here is on the path of a job from ``schedule`` to ``ack``. Imported by ``core.broker``, the read models,
``repair``, ``pipeline`` and the entry points.
"""
