"""The mirrors: tables of the jobs that failed and of those in the morgue, so that people can filter and search them.

Redis is the truth. A dispatcher copies what its two indexes say into :class:`FailedJob` and :class:`MorgueJob`:

* *copying* (:mod:`.shadow`): each index is ordered by the moment of the failure or burial, so what is new lies behind a
  cursor, which is stored with the rows. It is complete whatever became of events.
* *review* (:mod:`.review`): where the table has more rows, or fewer, than Redis has entries, halving the time until the
  difference is found names the rows that have to go or to come, whatever the reason (done, cancelled, kicked, trimmed,
  lost with Redis, a clock that was set back).
* *when* (:mod:`.duty`): as soon as the worker hears that something failed or was buried, when a dispatcher's look sees
  another number than before, at the start, and every ten minutes.

Several dispatchers do the same at the same time and harm nothing: a row is right if, and only if, Redis has that member
with that score, so every step brings the table closer to it, and none relies on the step before.
"""

from __future__ import annotations

from .duty import Mirror
from .rebuild import rebuild

__all__ = ["Mirror", "rebuild"]
