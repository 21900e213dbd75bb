"""Sender of jobs (:mod:`.sender`), of many in chunks (:mod:`.job_chunks`); resumable bulk loads (:mod:`.bulk_loads`).

Imported by ``core.queue``, ``scheduling``, ``outbox`` and ``pipeline``.
"""
