"""The providers of e-mail, simulated: most take a message at once, one is slow to answer, one is down.

What a provider takes is a line in a file of the mailbox, so that who was greeted, and how often, can be counted later.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from . import conf

#: takes a message when it is asked for the third time
SLOW = "slow.example"
#: takes none until :func:`.conf.nowhere_is_back`
NOWHERE = "nowhere.example"
PATIENT = 3


class ProviderDown(Exception):
    """A provider did not take a message."""


def deliver(customer: int, address: str, *, attempt: int) -> None:
    """Hand a greeting to the provider of an address.

    Args:
        attempt: how many times it is tried, with this one.

    Raises:
        ProviderDown: it did not take it.
    """
    provider = address.rpartition("@")[2]
    if (provider == SLOW and attempt < PATIENT) or (provider == NOWHERE and not conf.nowhere_is_back()):
        raise ProviderDown(f"{provider} does not answer")
    folder = conf.mailbox()
    if folder is not None:
        os.write(_file(folder, os.getpid()), b"%d\n" % customer)


@functools.cache
def _file(folder: str, pid: int) -> int:
    """The file of one process: what is appended in one call is never mixed with what other threads append."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return os.open(Path(folder) / f"{pid}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
