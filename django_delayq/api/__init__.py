"""HTTP API: queues, jobs, workers and metrics for programs in any language. Needs the extra ``api``.

    urls         the routes, collected from the handlers: path("delayq/", include("django_delayq.api.urls"))
    base         base view, and how handlers describe themselves (permissions and errors: :mod:`django_delayq.access`)
    queues, limits, jobs, consuming, operations, history   the handlers, one view for each resource
    requests, responses   what they read and return, on the fields and base classes of ``fields``
    entries      the fast path of producers; content and settle: that of consumers
    waiting      responses that wait for jobs
    idempotency  stored responses, replayed for the same Idempotency-Key
    openapi      the OpenAPI document

Settings are in ``DELAYQ["API"]`` (:class:`django_delayq.settings.conf.ApiConf`). Projects include ``urls``; they
may also use :func:`waiting.end_waits`, and ``SETTINGS`` of ``openapi``.
"""

from __future__ import annotations

try:
    import drf_spectacular  # noqa: F401 (imported to see if it is there, as the next one)
    import rest_framework  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the HTTP API needs Django REST framework and drf-spectacular ({error}): pip install 'django-delayq[api]'",
        name=error.name,
    ) from error
