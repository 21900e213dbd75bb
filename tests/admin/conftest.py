"""Fixtures for tests of the admin.

    browser      a real browser, logged out, on the live site with its static files; see tests/support/browser.py.
                 After the test its console has to be empty (``browser.forgive(pattern)`` for what is meant to fail)
    operator     the same, logged in as a user who may do everything
    staff        ``staff("view_livejob", "cancel_livejob")``: a user of the admin with just these permissions
    onlooker, dashboard_user, manager    clients of users who may see the dashboard, or also queues and jobs, and pause,
                 or do everything with queues

Without Chromium the tests that use ``browser`` are skipped, with ``CI=true`` they fail. On PostgreSQL they are left
out: the pages are the same.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from tests.support.browser import Browser, BrowserBox, find_programs

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def browser_box() -> Iterator[BrowserBox]:
    """The run's browser."""
    programs = find_programs()
    if isinstance(programs, str):
        if os.environ.get("CI") == "true":
            pytest.fail(programs)
        pytest.skip(programs)
    with BrowserBox(programs) as box:
        yield box


@pytest.fixture(scope="session")
def live_server(django_db_setup: None) -> Iterator[LiveServer]:
    """pytest-django's, but made after the test database: before, it would take ours for one in memory, to be shared."""
    server = LiveServer("127.0.0.1")
    yield server
    server.stop()


@pytest.fixture
def browser(browser_box: BrowserBox, delayq: Any, live_server: LiveServer) -> Iterator[Browser]:
    """The browser on the live site."""
    opened = Browser(browser_box, live_server.url)
    yield opened
    said = opened.console()
    opened.driver.get("about:blank")  # no request of this page's may meet the next test
    assert not said, "the browser's console is not empty:\n" + "\n".join(said)


@pytest.fixture
def staff(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes users of the admin with just the permissions named."""
    request.getfixturevalue("transactional_db" if "live_server" in request.fixturenames else "db")
    from django.contrib.auth.models import Permission, User

    def make(*permissions: str, superuser: bool = False) -> User:
        user = User.objects.create_user(f"staff{next(_numbers)}", is_staff=True, is_superuser=superuser)
        found = list(Permission.objects.filter(codename__in=permissions, content_type__app_label="django_delayq"))
        assert len(found) == len(permissions), f"not all of {permissions} are permissions"
        user.user_permissions.set(found)
        return user

    return make


@pytest.fixture
def operator(browser: Browser, staff: Callable[..., Any]) -> Browser:
    """The browser of a user who may do everything."""
    browser.login(staff(superuser=True))
    return browser


@pytest.fixture
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes a snapshot of its own."""
    from django_delayq.admin import dashboard

    monkeypatch.setattr(dashboard, "SHARED", 0.0)


@pytest.fixture
def onlooker(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may see the dashboard, and nothing else."""
    client.force_login(staff("view_dashboard"))
    return client


@pytest.fixture
def dashboard_user(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may also see queues and jobs, and pause."""
    client.force_login(staff("view_dashboard", "view_queueentry", "pause_queueentry", "view_livejob"))
    return client


@pytest.fixture
def manager(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may do everything with queues."""
    client.force_login(staff("view_queueentry", "pause_queueentry", "run_queueentry", "purge_queueentry"))
    return client


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DELAYQ_TEST_DB", "sqlite").startswith("sqlite"):
        return
    left_out = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
