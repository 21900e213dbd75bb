"""Durable jobs: rows that are written in the caller's transaction and kept until the job is done.

    durability   which calls are durable, the preconditions, and the numbers of rows
    rows         records, due times, and all SQL statements of the writers on the table
    push         the protocol by which rows reach Redis: claim, send, settle
    producer     calls of Redis while a request waits: short timeout, circuit breaker, push after the commit
    row_verbs    cancel, reschedule and run_now, which change the rows first, then Redis
    duties       relay, completion marks, reconciler and retention, which dispatchers and workers run
    inbox        exactly_once

Rows that cannot be sent at once are left to the relay of the dispatcher.
"""
