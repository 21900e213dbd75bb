"""Grape's HTTP interface, for programs that talk to Grape 1.3: point them here and give them a token.

It is off unless a project includes it::

    path("grape/", include("django_delayq.api.grape.urls"))  # then POST /grape/api/job/produce?tube=mail&jid=7

A tube is a queue of kind ``pull``. Addresses, methods, parameters, answers and error codes are Grape's; what differs:

* Everything asks for a token (``Authorization: Token …``) whose user has the permission of the same verb in v1:
  produce, consume, operate, view or admin. Nobody gets in with a session: GET consume changes something, so a browser
  must not be able to do it.
* **GET /api/job/consume takes jobs.** It is the one GET of the whole API that changes anything; POST does the same, for
  whoever has a proxy that caches or repeats a GET.
* ``finish``, ``release`` and ``bury`` name the job only, as in Grape: whoever has the permission ends the present
  lease of the id, also if that is another consumer's by now. The v1 routes ask for the lease.
* A lease that runs out counts as a crash, and three of them put a job into the morgue, where Grape hands it out for
  ever.
* ``produce`` answers false where the id lives, in whatever state but failed; in Grape it overwrote a job that was being
  consumed, and lost it.
* ``delete`` of a job that is being consumed answers false, as in Grape; the job does not come back.
* ``dtr`` in answers is that of ``produce``, also after a release or a kick with another one. ``noe`` begins anew with a
  kick. A negative ``dtr`` is 0.
"""
