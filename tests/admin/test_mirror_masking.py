"""The tables keep no secrets, can be switched off, and say how old they are. Actions use what Redis has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq import mirror
from django_delayq.connections import broker as project_broker
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.mirror.duty import LATE_SECONDS, set_age
from django_delayq.models import FailedJob, MorgueJob
from django_delayq.repair import jobs as repair
from django_delayq.repair.orders import matching
from django_delayq.runtime.bookkeeping import duties
from django_delayq.settings.conf import conf
from django_delayq.worker.loop import Changes
from tests.admin.mirrors import FAILED, MORGUE
from tests.app import deeds  # noqa: F401  # registers its tasks
from tests.app.mirror_stage import Trouble, finish, tables

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "hunter2"
ERROR = json.dumps(
    {
        "class": "shop.GatewayDown",
        "message": f"refused: password={SECRET}",
        "traceback": f'  File "/srv/shop.py", line 1, in pay\n    pay(token="{SECRET}")\nDown: password={SECRET}',
    }
).encode()
OPTIONS = json.dumps({"context": {"session": SECRET, "trace": "t-1"}, "max_attempts": 7}).encode()


@pytest.fixture
def trouble(delayq: Broker) -> Trouble:
    """One queue with three shards."""
    return Trouble(delayq, shards=3)


def stored(row: FailedJob | MorgueJob) -> str:
    """All that a row has, as a text."""
    values = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    return repr({name: bytes(value) if isinstance(value, memoryview) else value for name, value in values.items()})


def test_no_secret_reaches_the_tables(trouble: Trouble) -> None:
    args = encode_args((), {"order": 5, "password": SECRET, "card": {"pin": SECRET, "name": "Ada"}})
    trouble.fail("one", args=args, options=OPTIONS, error=ERROR)
    trouble.bury("two", args=args, options=OPTIONS, error=ERROR, reason=f"token={SECRET}")
    trouble.copied()
    for row in (FailedJob.objects.get(), MorgueJob.objects.get()):
        assert SECRET not in stored(row)
        assert "refused" in row.error_message and 'File "/srv/shop.py", line 1, in pay' in row.error_traceback
        assert json.loads(bytes(row.args or b""))["k"]["order"] == 5
        assert json.loads(bytes(row.options)) == {"context": {"session": "••••••", "trace": "t-1"}, "max_attempts": 7}
    assert [matching(FailedJob, {"error_message__icontains": text}).count() for text in ("refused", SECRET)] == [1, 0]


def test_a_positional_argument_is_masked_by_the_name_of_its_parameter(trouble: Trouble, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"sensitive": ["text"]}}
    trouble.fail("known", args=encode_args((SECRET,), {"times": 2}))
    trouble.fail("unknown", task="of.another.release", args=encode_args((SECRET,), {"times": 2}))
    trouble.fail("named", task="of.another.release", args=encode_args((), {"times": 2, "text": SECRET}))
    trouble.copied()
    rows = {row.job_id: row.args and json.loads(bytes(row.args)) for row in FailedJob.objects.all()}
    assert rows == {
        "known": {"a": ["••••••"], "k": {"times": 2}},
        "unknown": None,
        "named": {"a": [], "k": {"text": "••••••", "times": 2}},
    }


def test_the_bodies_of_a_pull_queue_are_masked_or_not_stored(delayq: Broker) -> None:
    delayq.queue("feed", kind="pull")
    trouble = Trouble(delayq, name="feed")
    trouble.fail("json", task="", args=b'{"token":"hunter2","n":1}')
    trouble.fail("bytes", task="", args=b"\xffhunter2")
    trouble.copied()
    assert bytes(FailedJob.objects.get(job_id="json").args or b"").decode() == '{"token":"••••••","n":1}'
    assert FailedJob.objects.get(job_id="bytes").args is None


def test_a_retry_runs_what_redis_has_and_not_the_masked_copy(trouble: Trouble) -> None:
    args = encode_args((), {"password": SECRET})
    trouble.fail("failed", args=args)
    trouble.bury("buried", args=args)
    trouble.copied()
    repair.act("retry", [*FailedJob.objects.all(), *MorgueJob.objects.all()])
    assert {job.id: job.args for job in trouble.take("failed", "buried")} == {"failed": args, "buried": args}


def test_the_page_and_the_form_of_a_job_read_redis(trouble: Trouble, client: Client, staff: Callable[..., Any]) -> None:
    client.force_login(staff("view_morguejob", "edit_morguejob"))
    trouble.bury("one", args=encode_args(("x",), {"times": 3}))
    trouble.copied()
    row = MorgueJob.objects.get()
    MorgueJob.objects.update(args=encode_args(("forged",), {}))
    for page in ("change", "edit"):
        html = client.get(f"{MORGUE}{row.pk}/{page}/").content.decode()
        assert "times" in html and "forged" not in html


# -- the switch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def off(settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": {"enabled": False}}


def names_of_duties() -> set[str]:
    return set(duties(conf(), project_broker(), Changes(), list))


@pytest.mark.parametrize(
    ("enabled", "admin", "expected"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_tables_are_filled_where_the_admin_is_installed_or_the_setting_says_so(
    delayq: Broker, settings: Any, enabled: bool | None, admin: bool, expected: bool
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": {"enabled": enabled}}
    if not admin:
        settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django.contrib.admin"]
    assert ("mirror" in names_of_duties()) is expected


def test_switched_off_the_pages_say_so_and_show_no_row_of_an_earlier_time(
    trouble: Trouble, client: Client, staff: Callable[..., Any], settings: Any
) -> None:
    client.force_login(staff("view_failedjob", "view_morguejob", "retry_failedjob"))
    trouble.fail("one")
    trouble.bury("two")
    trouble.copied()
    key = FailedJob.objects.get().pk
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": {"enabled": False}}
    for page in (FAILED, MORGUE):
        html = client.get(page).content.decode()
        assert "Nothing is copied here" in html and "0 " in html and "change/" not in html
    assert client.get(f"{FAILED}{key}/change/").status_code == 302
    client.post(FAILED, {"action": "retry_now", "_selected_action": str(key), "confirmed": "1"})
    assert trouble.state("one") == "delayed"


@pytest.mark.usefixtures("off")
def test_switched_off_no_action_fills_the_tables_and_a_rebuild_empties_them(trouble: Trouble) -> None:
    trouble.fail("one", "two")
    finish(trouble.mirror())
    repair.act("bury", FailedJob.objects.filter(job_id="one"))
    assert (tables(), trouble.state("one")) == ({"failed": ["two x1"], "morgue": []}, "morgue")
    assert mirror.rebuild() == {"failed": 0, "morgue": 0}
    assert tables() == {"failed": [], "morgue": []}


# -- the age ---------------------------------------------------------------------------------------------------------


def test_the_lists_say_how_old_the_copies_are(trouble: Trouble, client: Client, staff: Callable[..., Any]) -> None:
    client.force_login(staff("view_failedjob", "view_morguejob"))
    assert "Nothing was copied from Redis yet" in client.get(FAILED).content.decode()
    trouble.copied()
    for page in (FAILED, MORGUE):
        html = client.get(page).content.decode()
        assert "Copied from Redis:" in html and "No dispatcher has copied since" not in html
        assert "&lt;" not in html.partition("</title>")[0], "the title is plain text"
    set_age(trouble.broker, LATE_SECONDS + 1)
    assert "No dispatcher has copied since" in client.get(FAILED).content.decode()


@pytest.mark.broken_on_purpose
def test_a_shard_whose_index_is_damaged_holds_up_no_other_but_the_age(
    trouble: Trouble, client: Client, staff: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    client.force_login(staff("view_failedjob"))
    idents = [f"j{number}" for number in range(30)]
    trouble.fail(*idents)
    sound = [ident for ident in idents if trouble.queue.shard_of(ident) != 0]
    key, redis = trouble.queue.shard(0).names["failed"], trouble.broker.client
    redis.delete(key)
    redis.set(key, "no index")
    copying = trouble.mirror()
    trouble.note()
    for _ in range(5):
        copying._next_turn = 0.0
        copying.run()
    assert sorted(FailedJob.objects.values_list("job_id", flat=True)) == sorted(sound)
    assert "mirror: shard 0 of queue q failed and is retried; the rest goes on" in caplog.messages
    assert "Nothing was copied from Redis yet" in client.get(FAILED).content.decode()
