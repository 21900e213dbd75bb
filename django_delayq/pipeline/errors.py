"""Errors raised by the pipeline in addition to those of the core."""

from __future__ import annotations

from ..core.errors import DelayQError


class PipelineError(DelayQError):
    """Error for a request that the pipeline cannot fulfil; the message names an alternative."""


class SparkMissing(PipelineError):
    """Error for a missing installation of Spark or of a package that it needs."""


class RunDiffers(PipelineError):
    """Error for resuming a bulk load with another input than it was started with."""


class EventsLost(PipelineError):
    """Error for events that were trimmed before they were read, or lost by Redis."""
