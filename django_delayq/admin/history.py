"""History: a list of hours with totals, charts and tasks of its period, and the forecast for the next day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _, gettext_lazy
from redis.exceptions import RedisError

from .. import connections
from ..core.errors import Misconfigured, QueueUnavailable
from ..history.forecast import Forecast, QueueForecast, forecast
from ..history.series import (
    FAILURES,
    HOUR,
    NAMED,
    USUAL,
    Period,
    SeriesQuery,
    SeriesSum,
    Summary,
    from_row,
    named,
    summary,
    to_row,
)
from ..status.formatting import NOTHING, duration, millis
from .base import TableAdmin, column
from .charts import Chart, Row, number
from .filters import MOST, ValueFilter
from .formatting import grouped, local_text, percent

if TYPE_CHECKING:
    from django.contrib.admin.views.main import ChangeList
    from django.db.models import QuerySet

    from ..models import HourlyStat

#: maximum number of tasks in a table
MOST_TASKS: Final = 10
_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)


class PeriodFilter(admin.SimpleListFilter):
    """Filter by a named period, or by the days or moments in ``from`` and ``to``, in the current time zone."""

    title = gettext_lazy("period")
    parameter_name = "period"
    NAMES: Final = {
        "today": gettext_lazy("today"),
        "24h": gettext_lazy("24 hours"),
        "7d": gettext_lazy("7 days"),
        "30d": gettext_lazy("30 days"),
    }
    BOUNDS: Final = ("from", "to")

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        super().__init__(request, params, *args)
        self.since, self.until = (params.pop(name, [""])[-1].strip()[:40] for name in self.BOUNDS)
        #: why another period than the requested one is shown
        self.problem = ""
        name = self.value() or ""
        self.period = named(name if name in NAMED else USUAL)
        if self.since or self.until:
            try:
                end = _moment(self.until, end=True) if self.until else datetime.now(UTC)
                self.period = Period.between(_moment(self.since) if self.since else end - _DAY, end)
            except ValueError as error:
                text = _("This period cannot be shown: %(error)s. The last 24 hours are shown instead.")
                self.problem = text % {"error": error}

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        """Return the named periods."""
        return list(self.NAMES.items())

    def expected_parameters(self) -> list[str | None]:
        """Return the parameters of the address that this filter reads."""
        return [self.parameter_name, *self.BOUNDS]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the named periods; there is always one."""
        for name, title in self.NAMES.items():
            query = changelist.get_query_string({str(self.parameter_name): name}, list(self.BOUNDS))
            chosen = name == (self.value() or USUAL) and not (self.since or self.until)
            yield {"selected": chosen, "query_string": query, "display": title}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the hours of the period."""
        return SeriesQuery(period=self.period).rows(queryset)


def _moment(text: str, *, end: bool = False) -> datetime:
    """Return a moment in the current time zone; a date alone is the start of its day, or its end.

    Raises:
        ValueError: it is not a date.
    """
    try:
        day = parse_date(text)
        moment = parse_datetime(text) if day is None or len(text) > 10 else None
        if moment is None and day is not None:
            moment = datetime.combine(day + _DAY if end else day, time())
        if moment is not None:
            return moment if timezone.is_aware(moment) else timezone.make_aware(moment)
    except (ValueError, OverflowError):
        pass
    raise ValueError(_("“%(text)s” is neither a date nor a date with a time") % {"text": text})


class RecentFilter(ValueFilter):
    """Filter by a name; the choices are those of the last week."""

    def values(self, rows: QuerySet[Any]) -> Iterable[str]:
        """Return the first values of the last week."""
        recent = rows.filter(hour__gte=to_row(datetime.now(UTC) - _WEEK)).order_by(self.field)
        return recent.values_list(self.field, flat=True).distinct()[:MOST]


class HourlyStatAdmin(TableAdmin):
    """Read-only list of hours. It shows the past even if Redis is unavailable."""

    change_list_template = "django_delayq/admin/history.html"
    ordering = ("-hour", "queue", "task")
    list_per_page = 50
    list_display = (
        *("hour_text", "queue", "task", "attempts", "done", "failures", "again", "late", "lateness", "duration"),
    )
    list_display_links = None
    list_filter = (PeriodFilter, RecentFilter.of("queue"), RecentFilter.of("task"))

    hour_text = column("hour", lambda hour: local_text(from_row(hour)), gettext_lazy("hour"), ordering="hour")
    attempts = column("runs", grouped, gettext_lazy("attempts"), ordering="runs")
    done = column("succeeded", grouped, gettext_lazy("succeeded"), ordering="succeeded")
    again = column("retries", grouped, gettext_lazy("retries"), ordering="retries")
    late = column("sla_missed", grouped, gettext_lazy("too late"), ordering="sla_missed")

    @admin.display(description=gettext_lazy("lateness p50, p99"), ordering="lateness_p99_ms")
    def lateness(self, row: HourlyStat) -> str:
        """Return percentiles of the lateness."""
        return f"{millis(row.lateness_p50_ms)}, {millis(row.lateness_p99_ms)}"

    @admin.display(description=gettext_lazy("duration p50, p99"), ordering="duration_p99_ms")
    def duration(self, row: HourlyStat) -> str:
        """Return percentiles of the duration."""
        return f"{millis(row.duration_p50_ms)}, {millis(row.duration_p99_ms)}"

    @admin.display(description=gettext_lazy("failed"))
    def failures(self, row: HourlyStat) -> str:
        """Return the number of attempts that failed in any way."""
        return grouped(sum(getattr(row, name) for name in FAILURES))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Return True for our own filters only."""
        return lookup in PeriodFilter.BOUNDS or super().lookup_allowed(lookup, value, request)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Render the list with what the chosen hours sum up to, and the forecast."""
        response = super().changelist_view(request, extra_context)
        if not isinstance(response, TemplateResponse):
            return response
        listed = request.delayq_changelist  # type: ignore[attr-defined]
        specs = {spec.parameter_name: spec for spec in listed.filter_specs}
        period = specs.pop("period")
        chosen = {name: spec.value() or "" for name, spec in specs.items()}
        query = SeriesQuery(chosen.get("queue", ""), chosen.get("task", ""), period.period)
        overview = summary(query, period.period)
        tasks = [
            (*name, listed.get_query_string(dict(zip(("queue", "task"), name, strict=True))), _of_task(counters))
            for name, counters in overview.by_failures()[:MOST_TASKS]
        ]
        more = {"period": period, "chosen": chosen, "tiles": _tiles(overview.total), "tasks": tasks}
        more |= {"charts": _charts(overview), "forecast": _ahead(query.queue), "has_hours": overview.total.rows}
        response.context_data = {**(response.context_data or {}), **more}
        return response


# -- texts -------------------------------------------------------------------------------------------------------------


def _tiles(total: SeriesSum) -> list[tuple[str, str, str]]:
    """Return (key, name, text) for the whole period."""
    return [
        ("runs", _("attempts"), grouped(total["runs"])),
        ("succeeded", _("succeeded"), grouped(total["succeeded"])),
        ("failures", _("failed"), percent(total.failure_rate)),
        ("p50", _("lateness, p50"), millis(total.lateness_ms(50))),
        ("p99", _("lateness, p99"), millis(total.lateness_ms(99))),
        ("late", _("too late"), grouped(total["sla_missed"])),
        ("retries", _("retries"), grouped(total["retries"])),
        ("buried", _("buried"), grouped(total["buried"])),
        ("took", _("duration, p50"), millis(total.duration_ms(50))),
        ("took99", _("duration, p99"), millis(total.duration_ms(99))),
    ]


def _of_task(counters: SeriesSum) -> list[str]:
    """Return attempts, failure rate, failures, and failures by kind."""
    rate = percent(counters.failure_rate)
    return [grouped(counters["runs"]), rate, *map(grouped, (counters.failures, *(counters[kind] for kind in FAILURES)))]


def _charts(overview: Summary) -> list[Chart]:
    """Return the charts of throughput and lateness."""
    pattern = "H:i" if overview.period.hours <= 48 else "j M"
    step, end = timedelta(hours=overview.period.step), overview.period.end
    throughput, lateness = [], []
    for place, (slot, total) in enumerate(zip(overview.period.slots, overview.slots, strict=True)):
        until, brief = min(slot + step, end), local_text(slot, pattern)
        full = f"{local_text(slot)} – {local_text(until, 'H:i' if until - slot <= _DAY else 'Y-m-d H:i')}"
        per_hour = overview.per_hour(place)
        cells = [(grouped(total["runs"]), number(per_hour)), (grouped(total["succeeded"]), "")]
        failed = (grouped(total.failures), number(per_hour * (total.failure_rate or 0.0)))
        throughput.append(Row(full, [*cells, failed], brief))
        late = [(millis(ms), number(ms)) for ms in (total.lateness_ms(50), total.lateness_ms(99))]
        lateness.append(Row(full, [*late, (grouped(total["sla_missed"]), "")], brief))
    text = _("%(attempts)s attempts in all, %(failed)s of them failed.")
    said = text % {"attempts": grouped(overview.total["runs"]), "failed": grouped(overview.total.failures)}
    head = ((_("Time"), 0), (_("Attempts"), 1), (_("Succeeded"), 0), (_("Failed"), 2))
    first = Chart("dq-throughput", _("Throughput"), _("attempts per hour"), head, throughput, said)
    p50, p99 = millis(overview.total.lateness_ms(50)), millis(overview.total.lateness_ms(99))
    said = _("Over the whole period p50 is %(p50)s and p99 %(p99)s.") % {"p50": p50, "p99": p99}
    head, note = ((_("Time"), 0), ("p50", 1), ("p99", 2), (_("Too late"), 0)), _("start after due time, log scale")
    return [first, Chart("dq-lateness", _("Lateness"), note, head, lateness, said, kind="lines", log="ms")]


# -- forecast ----------------------------------------------------------------------------------------------------------


def _ahead(queue: str) -> dict[str, Any]:
    """Return how many jobs fall due in each of the next hours, or the error if Redis is unavailable."""
    try:
        broker = connections.hurried_broker()
        found = forecast(broker, [one for one in broker.queues() if queue in ("", one.name)])
    except (QueueUnavailable, Misconfigured, RedisError) as error:
        return {"down": str(error)}
    total = found.total
    numbers = {"due": grouped(total.due), "soon": grouped(sum(total.hours))}
    return {
        "chart": _next_day(found),
        "summary": _("Jobs due now: %(due)s. Due within 24 hours: %(soon)s.") % numbers,
        "drained": _drained(total),
        "queues": [_of_queue(one) for one in found.queues if one.due or any(one.hours)],
    }


def _next_day(found: Forecast) -> Chart:
    left = found.total.behind or [None] * len(found.total.hours)
    rows = [
        Row(
            f"{local_text(begin, 'H:i')}–{local_text(begin + HOUR, 'H:i')}",
            [(grouped(count), number(count)), (NOTHING if rest is None else grouped(rest), "")],
            local_text(begin, "H:i"),
        )
        for begin, count, rest in zip(found.begins, found.total.hours, left, strict=True)
    ]
    head = ((_("Time"), 0), (_("Fall due"), 1), (_("Left at the end"), 0))
    return Chart("dq-forecast", _("The next 24 hours"), _("jobs that fall due"), head, rows)


def _drained(total: QueueForecast) -> str:
    if not total.due:
        return _("No due jobs are waiting.")
    if total.drained_s is not None:
        text = _("At the pace of each queue's busiest hour of the last week, all due jobs are done in about %(time)s.")
        return text % {"time": duration(max(1.0, total.drained_s))}
    if not total.behind:
        return _("No estimate is possible: the history has no attempts from the last week.")
    return _(
        "No estimate is possible for all jobs: in one queue more jobs fall due than were done in any hour of "
        "the last week, or the history has no attempts of it."
    )


def _of_queue(one: QueueForecast) -> list[str]:
    drained = NOTHING if one.pace is None else _("not within 24 h")
    if one.drained_s is not None:
        drained = duration(one.drained_s) if one.drained_s else _("now")
    return [
        one.queue,
        *map(grouped, (one.due, sum(one.hours), one.later)),
        NOTHING if one.pace is None else grouped(one.pace.per_hour),
        millis(None if one.pace is None else one.pace.mean_ms),
        NOTHING if one.work_s is None else duration(one.work_s),
        drained,
    ]
