"""Sender of many jobs in chunks (:mod:`.many`), room in a full queue (:mod:`.quotas`), bulk loads (:mod:`.bulk_loads`).

Imported by ``core.queue``, ``scheduling``, ``outbox`` and ``pipeline``.
"""
