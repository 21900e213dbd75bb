"""Worker processes: reserve jobs, run them and settle them. Depends on the core, not on Django.

Every package above it may import its modules. The package itself imports none of them, because a web process that only
calls ``current_job`` needs none of the processes.
"""
