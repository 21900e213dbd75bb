"""Pages over Redis: permissions, hostile text, and messages while Redis is unavailable."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from django_delayq import connections, limits
from django_delayq.admin import browse
from django_delayq.core.broker import Broker
from tests.admin.support import Yard, every_place, tags_of

BASE = "/admin/django_delayq"
JOB, QUEUE = quote("orders/delayed"), quote("orders")
#: address -> (method, permissions that it needs)
PAGES = {
    f"{BASE}/dashboard/": ("get", {"view_dashboard"}),
    f"{BASE}/dashboard/parts/": ("get", {"view_dashboard"}),
    f"{BASE}/livejob/": ("get", {"view_livejob"}),
    f"{BASE}/livejob/finished/": ("get", {"view_livejob"}),
    f"{BASE}/livejob/bulk/run/": ("post", {"view_livejob", "run_livejob"}),
    f"{BASE}/livejob/bulk/cancel/": ("post", {"view_livejob", "cancel_livejob"}),
    f"{BASE}/livejob/{JOB}/change/": ("get", {"view_livejob"}),
    f"{BASE}/livejob/{JOB}/run/": ("post", {"view_livejob", "run_livejob"}),
    f"{BASE}/livejob/{JOB}/reschedule/": ("post", {"view_livejob", "run_livejob"}),
    f"{BASE}/livejob/{JOB}/cancel/": ("post", {"view_livejob", "cancel_livejob"}),
    f"{BASE}/queueentry/": ("get", {"view_queueentry"}),
    f"{BASE}/queueentry/recurring/": ("get", {"view_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/change/": ("get", {"view_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/pause/": ("post", {"view_queueentry", "pause_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/resume/": ("post", {"view_queueentry", "pause_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/worker/": ("post", {"view_queueentry", "pause_queueentry"}),
    f"{BASE}/queueentry/pause_producers/": ("post", {"view_queueentry", "pause_queueentry"}),
    f"{BASE}/queueentry/resume_producers/": ("post", {"view_queueentry", "pause_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/run/": ("post", {"view_queueentry", "run_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/purge/": ("post", {"view_queueentry", "purge_queueentry"}),
    f"{BASE}/queueentry/workers/w/stop/": ("post", {"view_queueentry", "stop_queueentry"}),
    f"{BASE}/queueentry/workers/w/drain/": ("post", {"view_queueentry", "stop_queueentry"}),
    f"{BASE}/queueentry/workers/w/dump/": ("post", {"view_queueentry", "dump_queueentry"}),
    f"{BASE}/queueentry/create/": ("post", {"view_queueentry", "create_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/limit/": ("post", {"view_queueentry", "limit_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/throttle/": ("post", {"view_queueentry", "limit_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/reshard/": ("post", {"view_queueentry", "reshard_queueentry"}),
    f"{BASE}/queueentry/{QUEUE}/delete/": ("post", {"view_queueentry", "delete_queueentry"}),
}
PERMISSIONS = sorted({one for _, needed in PAGES.values() for one in needed})
SAID = {
    "direction": "both",
    "typed": "orders",
    "delay": "1",
    "unit": "hours",
    "name": "new",
    "kind": "python",
    "shards": "1",
    "priorities": "strict",
    "max_length": "9",
    "concurrency": "2",
}


def world(broker: Broker) -> Any:
    queue = connections.existing_queue("orders")
    assert queue is not None
    layout = broker.read_layout("orders")[1]
    return (
        layout,
        limits.get("orders"),
        [
            (
                place,
                [
                    (view.id, view.due_ms, view.state, view.job.flags)
                    for view in broker.inspector.page("orders", place).jobs
                ],
            )
            for place in ("waiting", "reserved", "failed", "morgue")
        ],
    )


def ask(client: Client, address: str) -> Any:
    if PAGES[address][0] != "post":
        return client.get(address)
    matching = {"across": "1", "confirmed": "yes", "address": "queue=orders&prefix=zz"}
    return client.post(address, {**SAID, **matching} if "/bulk/" in address else SAID)


def test_every_page_and_button_is_in_this_matrix() -> None:
    from django.contrib import admin

    from django_delayq.models import Dashboard, LiveJob, QueueEntry

    models = (Dashboard, LiveJob, QueueEntry)
    known = {str(one.name) for model in models for one in admin.site.get_model_admin(model).get_urls()}
    parts = [address.strip("/").split("/") for address in PAGES]
    pages = [
        (one[2], "bulk_" if one[3:4] == ["bulk"] else "", one[-1] if len(one) > 3 else "changelist") for one in parts
    ]
    listed = {f"django_delayq_{model}_{bulk}{page}" for model, bulk, page in pages}
    # These only lead to pages; test_queues.py has them.
    redirects = {f"django_delayq_{model}_object" for model in ("livejob", "queueentry")}
    assert listed | redirects == known


@pytest.mark.django_db
def test_without_a_login_there_is_only_the_login(delayq: Broker, client: Client, django_user_model: Any) -> None:
    every_place(delayq)
    before = world(delayq)
    for user in (None, django_user_model.objects.create_user("customer")):  # the second one is not staff
        if user is not None:
            client.force_login(user)
        answers = {address: ask(client, address) for address in PAGES}
        assert {answer.url.partition("?")[0] for answer in answers.values()} == {"/admin/login/"}
    assert world(delayq) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "held",
    [
        (),
        *((one,) for one in PERMISSIONS),
        *(("view_livejob", one) for one in ("run_livejob", "cancel_livejob")),
        *(("view_queueentry", one) for one in PERMISSIONS if one.endswith("_queueentry")),
    ],
    ids="+".join,
)
def test_each_permission_opens_its_own_pages_and_no_other(
    delayq: Broker, client: Client, staff: Callable[..., Any], held: tuple[str, ...]
) -> None:
    every_place(delayq)
    delayq.announce("w", {"queues": ["orders"]})
    client.force_login(staff(*dict.fromkeys(held)))
    for address, (_, needed) in PAGES.items():
        before = world(delayq)
        answer = ask(client, address)
        if needed <= set(held):
            assert answer.status_code in (200, 302), address
        else:
            assert answer.status_code == 403, address
            assert world(delayq) == before


@pytest.mark.django_db
def test_who_may_only_look_sees_no_buttons(delayq: Broker, client: Client, staff: Callable[..., Any]) -> None:
    every_place(delayq)
    delayq.announce("w", {"queues": ["orders"]})
    client.force_login(staff("view_livejob", "view_queueentry"))
    for address in (f"{BASE}/livejob/{JOB}/change/", f"{BASE}/queueentry/", f"{BASE}/queueentry/{QUEUE}/change/"):
        main = client.get(address).content.decode().partition('id="content-main"')[2]
        assert "<form" not in main, address
        main = main.replace('<a class="button" href="/admin/django_delayq/queueentry/recurring/">', "")
        assert "<button" not in main and 'class="button' not in main, address


@pytest.mark.django_db
def test_the_menu_has_only_what_one_may_see(delayq: Broker, client: Client, staff: Callable[..., Any]) -> None:
    client.force_login(staff("view_queueentry"))
    page = client.get("/admin/").content.decode()
    assert f"{BASE}/queueentry/" in page
    assert f"{BASE}/livejob/" not in page


@pytest.mark.django_db
def test_a_button_is_pressed_and_not_followed(delayq: Broker, admin_client: Client) -> None:
    every_place(delayq)
    for address in (f"{BASE}/livejob/{JOB}/run/", f"{BASE}/queueentry/{QUEUE}/pause/"):
        assert admin_client.get(address).status_code == 405


# -- hostile text ------------------------------------------------------------------------------------------------------

EVIL = [
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "</script><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7331073310 }}{% now 'Y' %}{{7331073310|add:7331073310}}",
    "</textarea></title><iframe src=//evil>",
    "%s %(id)s {0} {id.__class__}",
]


@pytest.mark.django_db(transaction=True)
def test_stored_text_never_becomes_html(delayq: Broker, admin_client: Client, unshared: None) -> None:
    plain = Yard(delayq, "orders", worker="worker")
    every_place(delayq)
    usual = {"progress", "pre", "code", "tfoot", "article", "h3", "meter"}.union(
        *(tags_of(admin_client.get(address).content) for address in [*lists("orders"), *pages_of("delayed", "orders")])
    )
    pages: dict[str, str] = {}  # address → what has to be on the page, escaped
    for number, evil in enumerate(EVIL):
        queue = evil.replace("/", "")[:60]  # a slash is in no name that the package itself gives a queue
        yard = Yard(delayq, queue, worker=evil)
        for name in (f"{evil}r", f"{evil}f", f"{evil}b"):
            yard.put(name, {evil: [evil]}, task=evil, context={evil: evil})
        jobs = yard.take()
        yard.put(f"{evil}r", evil, task=evil, delay_ms=1_000_000)
        for job in jobs:
            if job.id.endswith("f"):
                yard.failed(job, message=evil, traceback=evil, **{"class": evil, evil: evil})
            elif job.id.endswith("b"):
                yard.buried(job, reason=evil, message=evil, traceback=evil, **{"class": evil})
        yard.put(f"{evil}d", evil, delay_ms=900_000, task=evil)
        yard.add(f"{evil}m", {evil: evil}, delay_ms=900_000, task=evil)
        plain.put(f"raw-{number}", raw=evil.encode(), delay_ms=900_000, task=evil)
        delayq.announce(evil, {"queues": [queue], "host": evil, "running": evil, "threads": evil})
        pages |= {address: evil if "/livejob/" in address else queue for address in lists(queue)}
        pages |= {address: evil for letter in "rfbdm" for address in pages_of(f"{evil}{letter}", queue)}
    for address, evil in pages.items():
        answer = admin_client.get(address)
        assert answer.status_code == 200, address
        page = answer.content.decode()
        assert set(tags_of(answer.content)) <= usual, address
        assert not [text for text in ("<script>alert", "<img src=x", "14662146620") if text in page], address
        assert escape(evil)[:20] in page, address
    for evil in EVIL:
        job = f"{BASE}/livejob/{quote(f'{evil}/{evil}')}/change/"
        for address in (f"{BASE}/dashboard/", f"{BASE}/livejob/", f"{BASE}/livejob/finished/", job):
            tags_of(admin_client.get(address, {"q": evil}).content)
            words = ("queue", "place", "by", "cursor", "payloads")
            tags_of(admin_client.get(address, dict.fromkeys(words, evil)).content)


def lists(queue: str) -> list[str]:
    pages = ("change", "run", "purge")
    return [
        f"{BASE}/dashboard/",
        f"{BASE}/dashboard/parts/?all=1",
        f"{BASE}/livejob/",
        f"{BASE}/livejob/finished/",
        f"{BASE}/queueentry/",
        *(f"{BASE}/livejob/?place={place}" for place in browse.PLACES),
        *(f"{BASE}/queueentry/{quote(queue)}/{page}/" for page in pages),
    ]


def pages_of(ident: str, queue: str) -> list[str]:
    asking = ("cancel", "reschedule") if ident[-1] in "dm" else ()
    return [f"{BASE}/livejob/{quote(f'{queue}/{ident}')}/{page}/" for page in ("change", *asking)]


# -- Redis is gone -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_without_redis_the_pages_say_so_kindly(client: Client, staff: Callable[..., Any], settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}
    connections.close_broker()
    client.force_login(staff(*PERMISSIONS))
    try:
        for address, (method, _) in PAGES.items():
            answer = ask(client, address)
            assert (answer.status_code, answer["Retry-After"]) == (503, "5"), address
            page = answer.content.decode()
            assert "Redis cannot be reached just now" in page and "Traceback" not in page, address
            assert ("It is unknown if your change was carried out" in page) == (method == "post"), address
            tags_of(answer.content)
    finally:
        connections.close_broker()


@pytest.mark.django_db
def test_without_redis_the_index_of_the_admin_works(admin_client: Client) -> None:
    assert admin_client.get("/admin/").status_code == 200
