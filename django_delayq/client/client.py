"""The client class, composed of all its parts."""

from __future__ import annotations

from .consuming import Consuming
from .looking import Looking
from .operating import Operating
from .producing import Producing


class Client(Producing, Consuming, Operating, Looking):
    """Client of the HTTP API of django_delayq; see :class:`django_delayq.client.base.Base` for its arguments.

    Every method raises :class:`ApiError`, or a more specific subclass.
    """
