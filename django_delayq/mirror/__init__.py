"""Index mirrors: tables of failed jobs and of jobs in the morgue, for filtering and searching.

Redis is authoritative. A dispatcher copies two Redis indexes into :class:`FailedJob` and :class:`MorgueJob`:

* *copying*: each index is ordered by the time of the failure or burial, so new entries follow the newest row. Copying
  is complete even if events are lost.
* *review*: if the table has more rows, or fewer, than Redis has entries, a walk through both finds the rows to delete
  or to add, whatever the reason (done, cancelled, kicked, trimmed, lost with Redis, a clock that was set back).
* *timing*: a copy starts when the worker notices a failure or burial, when a dispatcher's check finds
  another count than before, at start-up, and every ten minutes.

Several dispatchers can run concurrently without harm: a row is correct if, and only if, Redis has that member with that
score. Every step brings the table closer to that state, and no step relies on an earlier one.
"""

from __future__ import annotations

from .duty import Mirror, rebuild

__all__ = ["Mirror", "rebuild"]
