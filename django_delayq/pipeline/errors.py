"""What the pipeline raises, beside the errors of the core."""

from __future__ import annotations

from ..core.errors import DelayQError


class PipelineError(DelayQError):
    """The pipeline cannot do what it was asked for; the text says what to do instead."""


class SparkMissing(PipelineError):
    """Spark, or something that it needs, is not installed here."""


class RunDiffers(PipelineError):
    """A run is resumed with another input than it was begun with."""


class EventsLost(PipelineError):
    """Events were trimmed before they were read, or Redis has lost them."""
