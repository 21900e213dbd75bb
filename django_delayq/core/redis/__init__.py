"""The way to Redis: where it is, connections and their bounded pool, loading and calling scripts, kinds of errors.

Imported by ``core`` only, but for :class:`.config.RedisConfig` and the error classes of :mod:`.faults`.
"""
