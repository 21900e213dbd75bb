"""HTTP API: queues, jobs, workers and metrics for programs in any language. Needs the extra ``api``.

    urls         path("delayq/", include("django_delayq.api.urls"))
    views/        one module for each resource, each with its own ``urlpatterns``
    serializers/  what each resource reads and returns, checked, rendered and documented
    base          base view: bodies with limits, stored responses (permissions and errors: :mod:`django_delayq.access`)
    entries       the fast path of producers; held_jobs and settling: that of consumers
    idempotency   stored responses, replayed for the same Idempotency-Key
    openapi       the OpenAPI document

Settings are in ``DELAYQ["API"]`` (:class:`django_delayq.settings.conf.ApiConf`). Projects include ``urls``; they
may also use :func:`waiting.end_waits`, and ``SETTINGS`` and ``complete`` of ``openapi``.
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
