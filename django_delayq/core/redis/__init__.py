"""Access to Redis: its configuration, connections and their bounded pool, loading and calling scripts, kinds of errors.

Callers outside ``core`` use :class:`.config.RedisConfig`, the error classes of :mod:`.faults` and ``clear_errors``.
"""
