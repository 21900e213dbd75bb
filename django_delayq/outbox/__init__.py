"""Durable jobs: rows that are written in the caller's transaction and stay until the job is done.

    rows        the statements on the table; nobody else writes SQL for it
    door        which calls are durable, and what has to be right for that
    swift       after the commit: claims what was written, tells Redis with little patience, notes the outcome
    verbs       cancel, reschedule and run_now change the rows first, then Redis
    breaker     keeps a process from asking a dead Redis again and again
    claims      who of several dispatchers deals with which rows
    relay       the dispatcher's duty of telling Redis what its writer could not tell
    marks       takes down how jobs ended
    reconciler  notices what Redis has lost
    retention   forgets what nobody needs any more

Whatever fails on the way to Redis is left to the relay of the dispatcher.
"""
