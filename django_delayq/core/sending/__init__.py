"""Sender of many jobs, in chunks (:mod:`.chunks`) or as a bulk load that can be resumed (:mod:`.runs`).

Imported by ``core.queue``, ``scheduling`` and ``pipeline``.
"""
