"""What people do about jobs that failed or lie in the morgue; behind the admin's actions and the HTTP API.

    actions      retry, discard and bury for rows of the mirrors
    edit         another try with other arguments
    selection    which rows are meant, in a form that JSON can keep
    orders       the same for any number of rows, carried out by a worker

Redis is the truth: every action looks again at the moment at which it acts, and says what came of each job in one word:

=========== =========================================================================================================
retried     it is due now, or after the delay that was asked for
discarded   it is gone for good
buried      it is in the morgue
live        it stays where it is: a live job of the same id stands in its way
running     it stays as it is: a worker has it
gone        it was not there any more, and its row is not either
=========== =========================================================================================================
"""

from __future__ import annotations

from .actions import bury, discard, retry
from .edit import retry_edited
from .orders import order, stop
from .selection import FILTERS, matching

__all__ = ["FILTERS", "bury", "discard", "matching", "order", "retry", "retry_edited", "stop"]
