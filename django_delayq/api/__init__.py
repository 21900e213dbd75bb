"""HTTP API: queues, jobs, workers and metrics for programs in any language. Needs the extra ``api``.

    urls         path("delayq/", include("django_delayq.api.urls"))
    views/       one module for each resource, each with its own ``urlpatterns``
    base         base view: permissions, throttling, renderers
    problems     errors as problem details with stable codes
    parsing      JSON bodies with limits
    values       moments, jobs and leases in JSON
    idempotency  stored responses, replayed for the same Idempotency-Key

Settings are in ``DELAYQ["API"]`` (:class:`django_delayq.settings.sections.ApiConf`). Projects include ``urls``; they
may also use :func:`waiting.end_waits`, and ``SETTINGS`` and ``complete`` of ``openapi``.
"""
