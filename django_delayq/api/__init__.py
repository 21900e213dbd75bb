"""The HTTP API: queues, jobs, workers and figures for programs in any language. It needs the extra ``api``.

    urls         path("delayq/", include("django_delayq.api.urls"))
    views/       one module for each kind of thing, each with its own addresses
    base         what every view shares: who may, how much, what an answer looks like
    problems     errors as problem details with stable codes
    parsing      JSON bodies with limits
    values       moments, jobs and leases as JSON has them
    idempotency  answers that are given again to the same Idempotency-Key

Settings are in ``DELAYQ["API"]`` (:class:`django_delayq.settings.sections.ApiConf`).
"""
