"""Marks of tests of the clients."""

import pytest

from django_delayq.client import Client

blocking_only = pytest.mark.parametrize("kind", [Client], ids=["sync"], indirect=True)
