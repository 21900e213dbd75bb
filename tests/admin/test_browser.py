"""The browser of the tests itself."""

from __future__ import annotations

from tests.support.browser import Browser


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
