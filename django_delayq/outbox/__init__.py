"""Durable jobs: rows that are written in the caller's transaction and kept until the job is done.

    rows         all SQL statements of the writers on the table
    durability   which calls are durable, and the preconditions
    protocol     claims, results of sending a row, and the changes that they make; shared by fast path and relay
    producer     calls of Redis while a request waits: short timeout, circuit breaker, copy of the clock
    fast_path    fast path after the commit: claims the rows of a call, sends them, writes the results
    row_verbs    cancel, reschedule and run_now, which change the rows first, then Redis
    batch_verbs  the same for many jobs by their ids
    queue_verbs  cancel and run_now of all waiting jobs of a queue
    breaker      circuit breaker that keeps a process from calling an unavailable Redis again and again
    claims       division of the rows among several dispatchers
    sender       sending of the claimed rows of several jobs, in the order of each job's rows
    relay        dispatcher duty that sends the rows which their writer could not send
    completions  dispatcher duty that stores how jobs ended
    reconciler   dispatcher duty that detects jobs lost by Redis
    retention    deletion of rows that are no longer needed

Rows that cannot be sent at once are left to the relay of the dispatcher.
"""
