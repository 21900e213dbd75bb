"""Simulated e-mail providers: most accept a message at once, one is slow, one is down.

Each accepted message is a line in a file of the mailbox, so that greetings can be counted later, including duplicates.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from . import conf

#: accepts a message at the third attempt
SLOW = "slow.example"
#: accepts none until :func:`.conf.nowhere_is_back`
NOWHERE = "nowhere.example"
PATIENT = 3


class ProviderDown(Exception):
    """Error for a message that a provider did not accept."""


def deliver(customer: int, address: str, *, attempt: int) -> None:
    """Send a greeting to the provider of an address.

    Args:
        attempt: number of this attempt, from 1.

    Raises:
        ProviderDown: the provider did not accept it.
    """
    provider = address.rpartition("@")[2]
    if (provider == SLOW and attempt < PATIENT) or (provider == NOWHERE and not conf.nowhere_is_back()):
        raise ProviderDown(f"{provider} does not answer")
    folder = conf.mailbox()
    if folder is not None:
        os.write(_file(folder, os.getpid()), b"%d\n" % customer)


@functools.cache
def _file(folder: str, pid: int) -> int:
    """Return the file of one process; a text appended in one call is never mixed with that of other threads."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return os.open(Path(folder) / f"{pid}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
