"""Operations on queues for operators: inspector, search, views, columns, repair, checks, resharding.

Imported by ``core.broker``, the sender (for queues whose number of shards changes), the read models, ``repair``,
``pipeline`` and the entry points.
"""
