"""Serializers, one for each resource: it reads requests, renders responses and documents both, with examples.

    base            base class, lists of entries
    fields          checks of ``core`` as fields
    problems        errors
    queues          queues and their limits
    jobs            jobs and lists of jobs
    produce         jobs to schedule, and the results
    job_verbs       verbs for one job or many: cancel, reschedule, kick, discard
    consume, ends   reserved jobs and their ends
    workers, stats  processes, numbers
    history         hours and sums; beside it pipeline runs, the forecast

The paths that every request of a busy producer or consumer takes do not pass through them: :mod:`..entries` reads job
entries, :mod:`..producing` and :mod:`..settling` render results, and :mod:`..held_jobs` renders reserved jobs.
``tests/api/test_serializers.py`` compares them with the serializers.
"""
