"""Byte layouts: Redis keys (:mod:`.keys`, the data model on one page), frames of calls and jobs, layouts of queues.

Pure functions without a connection. Imported by ``core``, and by ``pipeline``, ``testing`` and ``outbox`` for the
records that they pack or read themselves.
"""
