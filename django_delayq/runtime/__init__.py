"""Django around the worker: what the settings and the command line say (:mod:`.wiring`), duties in the database.

Imported by ``management`` and ``testing`` only.
"""
