"""Real browser: Debian's Chromium without a window, driven by its own chromedriver. Nothing is downloaded.

:class:`BrowserBox` is the running program, started once per session. :class:`Browser` is that box reset for one test
and one site. Programs are looked up in ``DELAYQ_CHROMIUM`` and ``DELAYQ_CHROMEDRIVER``, then on PATH
(:func:`find_programs`). Pages can reach only this machine.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from . import processes

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
DRIVERS: Final = ("chromedriver",)
INSTALL: Final = "install the packages chromium and chromium-driver (.ci/browser does it where apt-get may be used)"
#: folder for pictures of pages; without it none is taken
ARTEFACTS: Final = os.environ.get("DELAYQ_ARTEFACTS", "")
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--lang=en",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-pipe",  # it ends when its driver ends, in whatever way
    "--window-size=1280,900",
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of browser and driver."""

    browser: str
    driver: str


def find_programs() -> Programs | str:
    """Return the programs, or else a sentence that says what is missing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "there is no selenium; install the package's extra `test`"
    browser = _which("DELAYQ_CHROMIUM", BROWSERS)
    driver = _which("DELAYQ_CHROMEDRIVER", DRIVERS)
    missing = " and ".join(name for name, path in (("chromium", browser), ("chromedriver", driver)) if path is None)
    if browser is None or driver is None:
        return f"there is no {missing} on PATH; {INSTALL}"
    return Programs(browser, driver)


def _which(variable: str, names: tuple[str, ...]) -> str | None:
    named = os.environ.get(variable)
    return next(filter(None, map(shutil.which, (named,) if named else names)), None)


class BrowserBox:
    """Browser process with a profile of its own."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._home = Path(tempfile.mkdtemp(prefix="dq-browser-"))
        self._driver: Chrome | None = None
        self._driver_pid = 0

    def __enter__(self) -> BrowserBox:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def driver(self) -> Chrome:
        """Selenium's driver."""
        assert self._driver is not None, "the browser is not started"
        return self._driver

    def start(self) -> BrowserBox:
        """Start driver and browser."""
        from selenium.webdriver import Chrome, ChromeOptions, ChromeService

        options = ChromeOptions()
        options.binary_location = self._programs.browser
        for flag in (*FLAGS, f"--user-data-dir={self._home / 'profile'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        # Files that the browser leaves in its home or in TMPDIR are deleted with our folder.
        home = {"HOME": str(self._home), "TMPDIR": str(self._home), "XDG_CONFIG_HOME": str(self._home)}
        nobody = {"http_proxy": "", "https_proxy": "", "all_proxy": "", "no_proxy": "*"}
        service = ChromeService(self._programs.driver, env={**os.environ, **home, **nobody})
        with _without_proxies():
            self._driver = Chrome(options=options, service=service)
        self._driver.set_page_load_timeout(20)
        self._driver_pid = service.process.pid
        processes.watch(self._driver_pid)
        return self

    def close(self) -> None:
        """End both, and wait until every process of the browser is gone."""
        if self._driver is not None:
            self._driver.quit()
            self._driver = None
            processes.unwatch(self._driver_pid)
            profile = str(self._home)
            processes.wait_until(
                lambda: not any(profile in command for command in processes.leaked().values()),
                what="the end of the browser's processes",
            )
        shutil.rmtree(self._home, ignore_errors=True)


@contextmanager
def _without_proxies() -> Iterator[None]:
    """Remove proxy settings from the environment during the block, because the driver is on this machine."""
    names = [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]
    taken = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(taken)


def _is_gone(element: WebElement) -> bool:
    from selenium.common.exceptions import StaleElementReferenceException

    try:
        element.is_enabled()
    except StaleElementReferenceException:
        return True
    return False


class Browser:
    """Browser for one test, on one site.

    Attributes:
        site: address of the site, without a slash at the end.
        driver: selenium's driver, for operations that are not defined here.
    """

    def __init__(self, box: BrowserBox, site: str) -> None:
        self.driver = box.driver
        self.site = site
        self._forgiven: list[str] = [r"/favicon\.ico"]
        self.driver.get("about:blank")
        self._cdp("Network.clearBrowserCookies")
        self._cdp("Storage.clearDataForOrigin", origin=site, storageTypes="all")
        self._cdp("Emulation.setScriptExecutionDisabled", value=False)
        self.driver.set_window_size(1280, 900)
        self.theme("light")
        self.console()

    def _cdp(self, command: str, **options: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, options)

    # -- user, page and settings ------------------------------------------------------------------------------------

    def login(self, user: User) -> None:
        """Log in as ``user`` by a session cookie."""
        from django.conf import settings
        from django.test import Client

        client = Client()
        client.force_login(user)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME]
        self._cdp("Network.setCookie", name=cookie.key, value=cookie.value, url=self.site, httpOnly=True)

    def open(self, path: str) -> None:
        """Open a path of the site and wait until the page is loaded."""
        self.driver.get(self.site + path)

    @property
    def path(self) -> str:
        """Path and query of the present page."""
        return self.driver.current_url.removeprefix(self.site)

    def theme(self, scheme: str) -> None:
        """Emulate the system's colour scheme, ``light`` or ``dark``."""
        self._cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def scripts(self, *, run: bool) -> None:
        """Allow or forbid scripts in pages that are opened from now on."""
        self._cdp("Emulation.setScriptExecutionDisabled", value=not run)

    def size(self, width: int, height: int) -> None:
        """Set the window's size in pixels, and wait until the page is drawn in it."""
        self.driver.set_window_size(width, height)
        self.until(lambda: self.run("return innerWidth") == width, what=f"a page of {width} pixels")
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    # -- content of the page ----------------------------------------------------------------------------------------

    def find(self, css: str, *, timeout: float = 10.0) -> WebElement:
        """Return the first visible element of a CSS selector, as soon as there is one."""
        return self.until(lambda: next((one for one in self.all(css) if one.is_displayed()), None), timeout, css)

    def all(self, css: str) -> list[WebElement]:
        """Return the present elements of a CSS selector, hidden ones included."""
        return self.driver.find_elements("css selector", css)

    def text(self, css: str = "body") -> str:
        """Return the visible text."""
        return self.until(lambda: (self.find(css).text,), what=css)[0]

    def attribute(self, css: str, name: str) -> str:
        """Return an attribute or property of the first visible element of a CSS selector; "" if it has none."""
        return self.until(lambda: (self.find(css).get_attribute(name) or "",), what=css)[0]

    def rows(self, css: str = "#result_list") -> list[list[str]]:
        """Return the cells of a table's body, read at one moment, because a script of the page may replace the rows."""
        script = """
            return Array.from(document.querySelectorAll(arguments[0]), row =>
                Array.from(row.querySelectorAll("th, td"), cell => cell.innerText.trim()));
        """
        found: list[list[str]] = self.driver.execute_script(script, f"{css} tbody tr")
        return found

    # -- actions ----------------------------------------------------------------------------------------------------

    def click(self, wanted: str, *, stays: bool = False) -> None:
        """Click on a CSS selector, or on the link or button with this text.

        After a link or a submit button, wait for the new page unless the browser ``stays`` on this one.
        """
        before = self.driver.find_element("css selector", "html")

        def press() -> tuple[bool]:
            element = self.find_named(wanted)
            link = element.tag_name == "a" and not (element.get_attribute("href") or "#").endswith("#")
            leaves = link or element.get_attribute("type") == "submit"
            element.click()
            return (leaves and not stays,)

        if self.until(press, what=f"a click on {wanted}")[0]:
            self.until(lambda: _is_gone(before), what=f"the page behind {wanted}")

    def find_named(self, wanted: str) -> WebElement:
        """Return the visible element of a CSS selector, or else the link or button with the text ``wanted``."""
        if re.search(r"[#.\[>:]", wanted) and not wanted.endswith("."):
            return self.find(wanted)
        quoted = "concat(" + ", '\"', ".join(f'"{part}"' for part in wanted.split('"')) + ', "")'
        says = f"normalize-space()={quoted} or @value={quoted} or @aria-label={quoted}"
        xpath = f"(//a | //button | //summary | //input[@type='submit' or @type='button'])[{says}]"
        return self.until(
            lambda: next((one for one in self.driver.find_elements("xpath", xpath) if one.is_displayed()), None),
            what=f"a link or button {wanted!r}",
        )

    def fill(self, name: str, value: str) -> None:
        """Fill in the field of this name; in a list, choose the entry with this value or text."""
        field = self.find(f'[name="{name}"]')
        if field.tag_name == "select":
            option = next(
                one
                for one in field.find_elements("css selector", "option")
                if value in (one.get_attribute("value"), one.text)
            )
            option.click()
        else:
            field.clear()
            field.send_keys(value)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page; return the value of its ``return``."""
        return self.driver.execute_script(script, *arguments)

    # -- waiting and logs -------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], _T | None], timeout: float = 10.0, what: str = "the condition") -> _T:
        """Wait until ``condition`` is truthy, and return it. A disappearing element counts as not there yet."""
        from selenium.common.exceptions import (
            NoSuchElementException,
            StaleElementReferenceException,
            WebDriverException,
        )

        def look() -> _T | None:
            try:
                return condition()
            except (NoSuchElementException, StaleElementReferenceException):
                return None
            except WebDriverException as error:
                # The driver's words for an element that disappears while it is looked at.
                if "does not belong to the document" in str(error):
                    return None
                raise

        try:
            found = processes.wait_until(look, timeout, what, pause=0.02)
        except AssertionError as error:
            raise AssertionError(f"{error}; the page is {self.path}") from None
        assert found is not None
        return found

    def picture(self) -> bytes:
        """Return a picture of the whole page as PNG."""
        self.run("document.getAnimations().forEach(one => one.finish())")  # finish colour transitions first
        taken = self._cdp("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        return base64.b64decode(taken["data"])

    def screenshot(self, name: str) -> None:
        """Save a picture as ``<name>.png`` if the environment names a folder for pictures, which take their time."""
        if ARTEFACTS:
            Path(ARTEFACTS).mkdir(parents=True, exist_ok=True)
            (Path(ARTEFACTS) / f"{name}.png").write_bytes(self.picture())

    def forgive(self, pattern: str) -> None:
        """Ignore console messages that match this regular expression, because the test causes them."""
        self._forgiven.append(pattern)

    def console(self) -> list[str]:
        """Return the console messages since the last call: script errors, refused resources, anything written there."""
        said = [f"{entry['level']}: {entry['message']}" for entry in self._log()]
        return [line for line in said if not any(re.search(pattern, line) for pattern in self._forgiven)]

    def _log(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.execute("getLog", {"type": "browser"})["value"]
        return entries
