"""Repair of failed jobs and of jobs in the morgue; used by the admin, the commands and the HTTP API.

    jobs            retry, discard and bury for rows of the mirrors, and retry with other arguments
    orders          the same actions for any number of selected rows, run by a worker
    rows            ids and due times of jobs that are made of rows, for the comparison here and for Spark; no Django
    row_comparison  comparison of a table with the jobs that its rows need

Redis is authoritative: every action checks the job again when it acts, and reports one outcome for each job:

=========== =========================================================================================================
retried     the job is due now, or after the requested delay
discarded   the job is deleted for good
buried      the job is in the morgue
live        not changed: a live job of the same id is in the way
running     not changed: a worker is running the job
gone        the job no longer existed, and its row is deleted
=========== =========================================================================================================
"""
