"""The browser of the tests itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import browser as support
from tests.support.browser import Browser


def test_a_person_who_is_logged_in_sees_the_admin_with_its_styles(browser: Browser, staff: Callable[..., Any]) -> None:
    browser.login(staff(superuser=True))
    browser.open("/admin/")
    assert "Site administration" in browser.text("h1")
    assert browser.run("return getComputedStyle(document.querySelector('#header')).display") == "flex"
    assert len(browser.picture()) > 5_000


def test_nobody_is_logged_in_at_the_beginning(browser: Browser) -> None:
    browser.open("/admin/")
    assert browser.path == "/admin/login/?next=/admin/"


def test_what_a_script_throws_is_found(browser: Browser) -> None:
    browser.open("/admin/login/")
    browser.run("setTimeout(() => { throw new Error('too early') })")
    said: list[str] = []
    browser.until(lambda: said.extend(browser.console()) or said, what="the error in the console")
    assert len(said) == 1
    assert "too early" in said[0]


def test_pages_reach_nothing_but_this_machine(browser: Browser) -> None:
    browser.open("/admin/login/")
    browser.forgive("ERR_NAME_NOT_RESOLVED")
    reached = browser.driver.execute_async_script(
        "const done = arguments[0]; fetch('http://example.com/').then(() => done('yes'), () => done('no'))"
    )
    assert reached == "no"


def test_without_chromium_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said = support.find_programs()
    assert isinstance(said, str)
    assert said.startswith("there is no chromium and chromedriver on PATH; install the packages chromium")
