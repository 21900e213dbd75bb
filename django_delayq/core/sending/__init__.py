"""Sender of jobs (:mod:`.sender`), of many in chunks (:mod:`.chunks`); bulk loads that can be resumed (:mod:`.runs`).

Imported by ``core.queue``, ``scheduling``, ``outbox`` and ``pipeline``.
"""
