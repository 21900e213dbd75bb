"""Access control of the HTTP views, shared by the API and the metrics: exemptions from what the project does to views.

    problems     errors as problem details with stable codes
    views        base view with authentication, the five permissions, the ``allow`` rule and throttling

These two need Django REST framework.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.views.decorators.csrf import csrf_exempt


def outside_transactions(view: Any) -> Any:
    """Return the view, exempt from ``ATOMIC_REQUESTS`` of every database."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def open_to_all(view: Any) -> Any:
    """Return the view outside all transactions, exempt from middlewares that require a login or a CSRF token."""
    return login_not_required(csrf_exempt(outside_transactions(view)))
