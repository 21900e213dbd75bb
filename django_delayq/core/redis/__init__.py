"""Access to Redis: its configuration, connections and their bounded pool, loading and calling scripts, kinds of errors.

Imported by ``core`` only, except for :class:`.config.RedisConfig` and the error classes of :mod:`.faults`.
"""
