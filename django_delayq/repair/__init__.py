"""Repair of failed jobs and of jobs in the morgue; used by the admin's actions and the HTTP API.

    actions      retry, discard and bury for rows of the mirrors
    edit         retry with other arguments
    selection    selection of rows, in a form that can be stored as JSON
    orders       the same actions for any number of rows, run by a worker

    row_comparison  comparison of a table with its jobs; row_jobs: the jobs that its rows need

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

from __future__ import annotations

from .actions import VERBS, bury, discard, retry
from .edit import retry_edited
from .orders import order, stop
from .selection import FILTERS, matching

__all__ = ["FILTERS", "VERBS", "bury", "discard", "matching", "order", "retry", "retry_edited", "stop"]
