"""Permissions for every page and every button, for every kind of user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.core.broker import Broker
from django_delayq.models import BulkAction, FailedJob, InboxEntry, MorgueJob, OutboxJob
from tests.admin.mirrors import BASE, BULK, FAILED, INBOX, MORGUE, OUTBOX, buried_jobs, failed_jobs

pytestmark = pytest.mark.django_db

#: permission → what it allows besides nothing; every verb needs the right to view, too
VERBS = {
    "failedjob": {"retry_now": "retry", "retry_in": "retry", "bury": "bury", "discard": "discard"},
    "morguejob": {"retry_now": "retry", "retry_in": "retry", "discard": "discard"},
}
KEY = "6f0dd3a2-0000-4000-8000-000000000001"


@pytest.fixture
def world(delayq: Broker) -> dict[str, Any]:
    failed_jobs(delayq, 1)
    buried_jobs(delayq, 1)
    failed, buried = FailedJob.objects.get(), MorgueJob.objects.get()
    outbox = OutboxJob.objects.create(queue="orders", job_id="o", key=KEY, due_ms=1, record=b"")
    inbox = InboxEntry.objects.create(queue="orders", job_id="i", key=KEY)
    order = BulkAction.objects.create(action="discard", target="FailedJob", total=5)
    return {"failedjob": failed, "morguejob": buried, "outboxjob": outbox, "inboxentry": inbox, "bulkaction": order}


def pages(world: dict[str, Any], model: str) -> dict[str, str]:
    """Every page of a model that can be looked at."""
    one = f"{BASE}{model}/{world[model].pk}"
    found = {"list": f"{BASE}{model}/", "one": f"{one}/change/", "history": f"{one}/history/"}
    return found


def write_pages(world: dict[str, Any]) -> list[str]:
    """Return addresses that the admin offers for other models, and that must not exist here."""
    return [f"{BASE}{model}/{page}" for model, row in world.items() for page in ("add/", f"{row.pk}/delete/")]


def untouched(broker: Broker) -> bool:
    live, dead = broker.inspector.get("orders", "job-0"), broker.inspector.get("orders", "dead-0")
    return (
        live is not None
        and dead is not None
        and (live.state, dead.state) == ("delayed", "morgue")
        and FailedJob.objects.count() == MorgueJob.objects.count() == 1
        and BulkAction.objects.get().state == "waiting"
    )


def posts(world: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return every request that changes something, with and without confirmation."""
    found: list[tuple[str, dict[str, Any]]] = []
    for model, verbs in VERBS.items():
        row = world[model]
        for action in verbs:
            for across in "01":
                data = {"action": action, "_selected_action": row.pk, "select_across": across}
                more = {"confirmed": "yes", "delay": "5", "unit": "hours"}
                found += [
                    (f"{BASE}{model}/", data),
                    (f"{BASE}{model}/", {**data, "index": "0"}),
                    (f"{BASE}{model}/", {**data, **more}),
                    (f"{BASE}{model}/{row.pk}/change/", {**data, **more}),
                ]
        if model == "morguejob":
            found.append(
                (f"{BASE}{model}/{row.pk}/edit/", {"args": "[1]", "kwargs": "{}", "delay": "0", "unit": "hours"})
            )
        found.append((f"{BASE}{model}/{row.pk}/change/", {"queue": "other", "_save": "Save"}))
    found.append((f"{BULK}{world['bulkaction'].pk}/stop/", {}))
    found += [(address, {"post": "yes"}) for address in write_pages(world)]
    found += [
        (address, {"action": "delete_selected", "_selected_action": world[model].pk, "post": "yes"})
        for model, address in (
            ("outboxjob", OUTBOX),
            ("inboxentry", INBOX),
            ("bulkaction", BULK),
            ("failedjob", FAILED),
            ("morguejob", MORGUE),
        )
    ]
    return found


@pytest.mark.parametrize("who", ["anonymous", "no staff", "staff without permissions"])
def test_who_has_no_permission_sees_and_does_nothing(
    delayq: Broker, world: dict[str, Any], client: Client, staff: Callable[..., Any], who: str
) -> None:
    if who != "anonymous":
        user = staff()
        user.is_staff = who != "no staff"
        user.save()
        client.force_login(user)
    refused = {"anonymous": 302, "no staff": 302, "staff without permissions": 403}[who]
    for model in world:
        for address in pages(world, model).values():
            assert client.get(address).status_code == refused, address
    for address, data in posts(world):
        assert client.post(address, data).status_code in (302, 403, 404), address
    assert untouched(delayq)


def test_who_may_only_look_sees_everything_and_no_button(
    delayq: Broker, world: dict[str, Any], client: Client, staff: Callable[..., Any]
) -> None:
    client.force_login(staff(*(f"view_{model}" for model in world)))
    for model in world:
        for name, address in pages(world, model).items():
            answer = client.get(address)
            assert answer.status_code == 200, address
            page = answer.content.decode()
            assert 'name="action"' not in page and 'class="delayq-buttons"' not in page, address
            assert "/edit/" not in page and "/stop/" not in page and "/delete/" not in page, address
            assert "action-select" not in page, name
    assert client.get(f"{BASE}morguejob/{world['morguejob'].pk}/edit/").status_code == 403
    for address, data in posts(world):
        answer = client.post(address, data)
        assert answer.status_code in (200, 302, 403), address
        assert b'name="confirmed"' not in answer.content, address
    assert untouched(delayq)


@pytest.mark.parametrize(
    ("model", "permission"),
    [*((model, verb) for model, verbs in VERBS.items() for verb in sorted({*verbs.values()})), ("morguejob", "edit")],
)
def test_each_permission_gives_its_own_buttons_and_no_other(
    delayq: Broker, world: dict[str, Any], client: Client, staff: Callable[..., Any], model: str, permission: str
) -> None:
    client.force_login(staff(f"view_{model}", f"{permission}_{model}"))
    mine = {action for action, verb in VERBS[model].items() if verb == permission}
    row = world[model]
    page = client.get(f"{BASE}{model}/{row.pk}/change/")
    assert {deed.name for deed in page.context["buttons"]} == mine
    assert bool(page.context["edit_url"]) is (permission == "edit")
    edit = client.get(f"{BASE}morguejob/{world['morguejob'].pk}/edit/")
    assert edit.status_code == (200 if permission == "edit" else 403)
    for action in VERBS[model]:
        answer = client.post(f"{BASE}{model}/", {"action": action, "_selected_action": row.pk, "select_across": "0"})
        assert (b'name="confirmed"' in answer.content) is (action in mine), action
    for address, data in posts(world):
        if data.get("action") in mine or (permission == "edit" and address.endswith("/edit/")):
            continue
        assert b'name="confirmed"' not in client.post(address, data).content
    assert untouched(delayq)


@pytest.mark.parametrize("model", sorted(VERBS))
def test_a_verb_without_the_right_to_look_is_worth_nothing(
    delayq: Broker, world: dict[str, Any], client: Client, staff: Callable[..., Any], model: str
) -> None:
    client.force_login(staff(*{f"{verb}_{model}" for verb in VERBS[model].values()}, "edit_morguejob"))
    for address, data in posts(world):
        assert client.post(address, data).status_code in (302, 403), address
    assert client.get(f"{BASE}morguejob/{world['morguejob'].pk}/edit/").status_code == 403
    assert untouched(delayq)


def test_not_even_a_superuser_adds_changes_or_deletes_rows(
    delayq: Broker, world: dict[str, Any], admin_client: Client
) -> None:
    for address in write_pages(world):
        assert admin_client.get(address).status_code == 403, address
        assert admin_client.post(address, {"post": "yes"}).status_code == 403, address
    for model, row in world.items():
        answer = admin_client.post(f"{BASE}{model}/{row.pk}/change/", {"queue": "other", "_save": "Save"})
        assert answer.status_code == 403
    assert untouched(delayq)


def test_what_changes_something_wants_the_csrf_token(delayq: Broker, world: dict[str, Any], admin_user: Any) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    for address, data in posts(world):
        assert strict.post(address, data).status_code == 403, address
    assert untouched(delayq)


def test_what_changes_something_wants_a_post(delayq: Broker, world: dict[str, Any], admin_client: Client) -> None:
    assert admin_client.get(f"{BULK}{world['bulkaction'].pk}/stop/").status_code == 405
    for address, data in posts(world):
        admin_client.get(address, data)
    assert untouched(delayq)


def test_who_ordered_something_may_watch_and_stop_it(
    world: dict[str, Any], client: Client, staff: Callable[..., Any]
) -> None:
    user, other = staff(), staff()
    order = world["bulkaction"]
    order.ordered_by, order.ordered_by_pk = str(user), str(user.pk)
    order.save()
    client.force_login(other)
    assert client.get(f"{BULK}{order.pk}/change/").status_code == 403
    assert client.post(f"{BULK}{order.pk}/stop/").status_code == 403
    client.force_login(user)
    assert client.get(f"{BULK}{order.pk}/change/").status_code == 200
    assert "/stop/" in client.get(f"{BULK}{order.pk}/change/").content.decode()
    assert client.post(f"{BULK}{order.pk}/stop/").status_code == 302
    order.refresh_from_db()
    assert order.state == "stopped"
    assert client.get(BULK).status_code == 403
    client.force_login(staff("view_bulkaction", "stop_bulkaction"))
    other = BulkAction.objects.create(action="retry", target="FailedJob", total=5)
    client.post(f"{BULK}{other.pk}/stop/")
    other.refresh_from_db()
    assert other.state == "stopped", "of others, with the permission"


def test_the_index_names_what_a_person_may_see(
    world: dict[str, Any], client: Client, staff: Callable[..., Any]
) -> None:
    client.force_login(staff("view_morguejob", "discard_failedjob"))
    page = client.get("/admin/").content.decode()
    assert "morguejob" in page and "failedjob" not in page and "outboxjob" not in page
