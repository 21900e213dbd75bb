"""Names and meanings of the places of jobs, as pages show them."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext_lazy as _

#: places that the job browser lists
PLACE_NAMES: Final = {
    "waiting": _("Waiting"),
    "reserved": _("Reserved"),
    "gated": _("Gated"),
    "failed": _("Failed"),
    "morgue": _("Morgue"),
}
PLACE_MEANINGS: Final = {
    "waiting": _("Delayed and ready jobs: their due time is in the future, or has come."),
    "delayed": _("Jobs whose due time is in the future."),
    "ready": _("Jobs whose due time has come; they wait for a worker."),
    "reserved": _("Jobs that a worker or another consumer holds under a lease."),
    "gated": _(
        "Content scheduled for an id while its job is reserved. It becomes a job of its own when that attempt ends."
    ),
    "failed": _("Jobs with a failed attempt that wait for the next one; a retry needs no action."),
    "morgue": _("Dead jobs, kept for a decision: they are not retried until you retry or discard them."),
}
#: orders of a list
ORDER_NAMES: Final = {
    "due": _("due"),
    "deadline": _("end of lease"),
    "updated": _("last change"),
    "failures": _("failures"),
    "id": _("id"),
}
