"""All pages of the admin in a real browser: nothing is cut off or broken, under a strict policy.

With ``DELAYQ_ARTEFACTS=folder`` each page is saved as ``page-<name>-<width>.png``.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.http import HttpResponse
from django.utils import timezone

from django_delayq import mirror
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.core.job import NewJob
from django_delayq.models import BulkAction, FailedJob, InboxEntry, MorgueJob, OutboxJob, PipelineRun
from django_delayq.outbox.rows import pack_job
from tests.admin.browser_scripts import STYLED
from tests.admin.dashboards import lively
from tests.admin.mirrors import TRACEBACK
from tests.admin.pasts import lively_past
from tests.admin.support import Yard
from tests.support.browser import Browser

BASE = "/admin/django_delayq/"
#: widths of the window: a laptop, a telephone
WIDTHS = (1280, 390)
#: from this width on even a table needs no scroll bar
LAPTOP = 1280
QUEUE_PAGES = ("change", "run", "purge", "limit", "reshard", "delete")
LONG_ID = "subscription-renewal-2026-11"

#: elements that end beyond the window, or beyond a box that would have to be scrolled
CUT_OFF = """const [laptop] = arguments;
    const shown = one => one.offsetParent !== null && !one.closest('.dq-spoken, details, #nav-sidebar, .dq-heat-box');
    const edge = document.documentElement.clientWidth;
    const beyond = Array.from(document.querySelectorAll('#content :is(th, td, dd, p, h1, h2, a, input, button, pre)'))
        .filter(one => shown(one) && one.getBoundingClientRect().right > edge + 1
            && (laptop || !one.closest('.results, .dq-scroll-x, #toolbar, pre')));
    const boxes = laptop ? Array.from(document.querySelectorAll('.results, .dq-scroll-x'))
        .filter(one => one.scrollWidth > one.clientWidth + 1) : [];
    return [...beyond, ...boxes].map(one => `${one.tagName}.${one.className}: ${one.innerText.slice(0, 60)}`)"""
#: ids, keys and names of tasks in tables that take more than one line
BROKEN = """return Array.from(document.querySelectorAll(
        '#result_list :is(.field-job, .field-key, th[scope=row] a, .delayq-task), #result_list td time'))
    .filter(one => !one.querySelector('div')).flatMap(one => {
        const range = document.createRange();
        range.selectNodeContents(one);
        const lines = new Set(Array.from(range.getClientRects(), box => Math.round(box.top))).size;
        const text = one.innerText.trim();
        return lines > 1 && (!text.includes(' ') || one.tagName === 'TIME') ? [text] : [];
    })"""

#: names of usual length that are cut off with an ellipsis
SHORTENED = """return Array.from(document.querySelectorAll('.results .dq-name'))
    .filter(one => one.innerText.length <= 24 && one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"""
#: relative times of tables that have no absolute time beside them
WITHOUT_TIME = """return Array.from(document.querySelectorAll('.results td time.dq-when'))
    .filter(one => !one.dataset.at || getComputedStyle(one, '::after').content === 'none')
    .map(one => one.innerText)"""
#: labels of filters that stand in another line than their fields
LOST_LABELS = """return Array.from(document.querySelectorAll('.dq-search label[for]')).filter(one => {
        const [label, field] = [one, document.getElementById(one.htmlFor)].map(each => each.getBoundingClientRect());
        return label.width && (label.bottom < field.top || field.bottom < label.top);
    }).map(one => one.innerText)"""

#: addresses of all that the page has loaded
LOADED = "return performance.getEntriesByType('resource').map(one => one.name)"
LOOKS = {"broken": BROKEN, "shortened": SHORTENED, "without a time": WITHOUT_TIME, "label": LOST_LABELS}


def _mirrored(broker: Broker) -> None:
    """Failed jobs and jobs in the morgue, with long names and a traceback."""
    yard = Yard(broker, "payments", worker="worker-3@app-2:2291")
    for number, ident in enumerate((LONG_ID, "payment-78", "payment-79", "refund-80", "refund-81")):
        yard.put(
            ident,
            raw=encode_args((number,), {"card_number": "4111 1111 1111 1111"}),
            task="billing.subscriptions.renew_subscription",
            context={"trace": "4bf92f3577b34da6a3ce929d0e0e4736"},
        )
    error = {"class": "billing.gateway.GatewayDown", "traceback": TRACEBACK}
    for job in yard.take():
        if job.id.startswith("refund"):
            yard.buried(job, message="the bank refused the account", **error)
        else:
            yard.failed(job, delay_ms=240_000, message="gateway answered 503: try again in 10 minutes", **error)
    mirror.rebuild()


def _tables() -> None:
    """Rows of outbox, inbox, bulk actions and pipeline runs."""
    now = timezone.now()
    named = {"queue": "payments", "task": "billing.subscriptions.renew_subscription"}
    record = pack_job(NewJob(LONG_ID, named["task"], encode_args((5,), {"token": "t-1"}), options=b'{"priority":1}'))
    due_ms = int((now + timedelta(minutes=9)).timestamp() * 1000)
    for ident, state, error in ((LONG_ID, "unsent", ""), ("late-5", "refused", "QueueFull: full"), ("b", "sent", "")):
        row = {**named, "job_id": ident, "key": uuid.uuid4()}
        OutboxJob.objects.create(**row, due_ms=due_ms, record=record, state=state, error=error)
        InboxEntry.objects.create(**row)
    order = {"action": "retry", "target": "FailedJob", "total": 1_900_000, "filters": {"queue": "payments"}}
    for state, done in (("running", 800_000), ("done", 1_900_000)):
        BulkAction.objects.create(**order, state=state, done=done, ordered_by="operator", counts={"retried": done})
    rows = {"total": 1_000_000, "rows": 250_000, "created": 240_000, "known": 10_000, "detail": {"path": "/data/a.csv"}}
    for state, error in (("running", ""), ("finished", ""), ("failed", "EventsLost: positions 5 to 9 are missing")):
        run_id = f"greetings-2026-11-21-{state}"
        PipelineRun.objects.create(**rows, run_id=run_id, kind="bulk", queue="greetings", state=state, error=error)


def _pages() -> dict[str, str]:
    """Name and address of each page that a GET opens."""
    job, queue = f"{BASE}livejob/", f"{BASE}queueentry/payments/"
    lists = "dashboard livejob queueentry failedjob morguejob bulkaction outboxjob inboxentry hourlystat pipelinerun"
    rows = (FailedJob, MorgueJob, BulkAction, OutboxJob, InboxEntry, PipelineRun)
    changes = {f"{model._meta.model_name}-page": model.objects.order_by("pk")[0].pk for model in rows}
    named = quote(f"payments/{LONG_ID}").replace("/", "_2F")
    return {
        "index": "/admin/",
        **{f"livejob-{place}": f"{job}?place={place}" for place in ("reserved", "gated")},  # before their leases end
        **{name: f"{BASE}{name}/" for name in lists.split()},
        "livejob-search": f"{job}?q=order-1",
        "livejob-filter": f"{job}?task=shop.pay",
        "livejob-page": f"{job}{named}/change/",
        "livejob-reschedule": f"{job}{named}/reschedule/",
        "livejob-cancel": f"{job}{named}/cancel/",
        "livejob-finished": f"{job}finished/",
        "queueentry-create": f"{BASE}queueentry/create/",
        "queueentry-recurring": f"{BASE}queueentry/recurring/",
        "livejob-gone": f"{job}payments_2Fnone/change/",
        **{f"queueentry-{page}": f"{queue}{page}/" for page in QUEUE_PAGES},
        **{name: f"{BASE}{name.partition('-')[0]}/{quote(str(key))}/change/" for name, key in changes.items()},
        "morguejob-edit": f"{BASE}morguejob/{changes['morguejob-page']}/edit/",
        "failedjob-history": f"{BASE}failedjob/{changes['failedjob-page']}/history/",
        "hourlystat-week": f"{BASE}hourlystat/?period=7d",
    }


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbid what is not from the site itself; what a page tries all the same is in the browser's console."""
    create = HttpResponse.__init__

    def create_strict(self: HttpResponse, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        self.headers["Content-Security-Policy"] = "default-src 'self'"

    monkeypatch.setattr(HttpResponse, "__init__", create_strict)


@pytest.mark.usefixtures("strict")
def test_every_page_fits_every_screen(operator: Browser, delayq: Broker) -> None:
    lively(delayq)
    _mirrored(delayq)
    _tables()
    lively_past(24 * 7)
    problems = []
    for name, address in _pages().items():
        operator.open(address)
        if name in ("dashboard", "livejob-gone"):
            operator.forgive("404")
        for width in WIDTHS:
            operator.size(width, 900)
            operator.screenshot(f"page-{name}-{width}")
            problems += [f"{name} at {width}: {text}" for text in operator.run(CUT_OFF, width >= LAPTOP)]
            looks = LOOKS if width >= LAPTOP else {}
            problems += [f"{name}: {kind}: {text}" for kind, script in looks.items() for text in operator.run(script)]
        problems += [f"{name} has a style of its own: {text}" for text in operator.run(STYLED)]
        problems += [f"{name} loads {one}" for one in operator.run(LOADED) if not one.startswith(operator.site)]
    assert not problems, "\n".join(problems)
