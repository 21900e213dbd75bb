"""The pictures: each is a page of the admin, opened and saved. Imported when Django is set up."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.contrib.auth import get_user_model

from tests.support.browser import Browser, BrowserBox

from .shop import PROJECT

ADMIN: Final = "/admin/django_delayq/"
WIDTH: Final = 1366
#: height of a picture at most, pixels; a page of a hundred rows says no more than its first thirty
HEIGHT: Final = 1_100
COLOURS: Final = 128
#: paths of this machine are none of the readers' business
_NEUTRAL: Final = """const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      texts.currentNode.data = texts.currentNode.data.replaceAll(arguments[0], "/srv");
    }"""
#: responses after which the charts of the dashboard have lines
WATCHED: Final = 12


def _first_job(browser: Browser) -> None:
    """Open the page of the first job of a list."""
    browser.click("#result_list tbody th a")


def _watch(browser: Browser) -> None:
    """Wait until the charts have points."""
    asked = "return performance.getEntriesByType('resource').filter(one => one.name.includes('/parts/')).length"
    browser.until(lambda: browser.run(asked) > WATCHED, timeout=60, what="points of the charts")


def _retry_all(browser: Browser) -> None:
    """Choose all rows of the morgue and ask to retry them."""
    browser.click("#action-toggle", stays=True)
    browser.fill("action", "retry_now")
    browser.click("button[name='index']")


def _order_all(browser: Browser) -> None:
    """Retry all jobs of the morgue by a worker, so that there is a bulk action."""
    from django_delayq.models import BulkAction, MorgueJob
    from django_delayq.repair.orders import order

    browser.open("/admin/")
    for queue, action in (("greetings", "retry"), ("partners", "discard")):
        order(action, MorgueJob, {"queue": queue}, user=get_user_model().objects.get(username="admin"))
    browser.until(lambda: not BulkAction.objects.exclude(state="done").exists(), timeout=60, what="done bulk actions")
    browser.open(f"{ADMIN}bulkaction/")


@dataclass(frozen=True, slots=True)
class Picture:
    """Page, and how to come to what is shown of it."""

    name: str
    path: str
    steps: tuple[Callable[[Browser], None], ...] = ()
    theme: str = "light"
    width: int = WIDTH
    height: int = HEIGHT


PICTURES: Final = (
    Picture("dashboard-light", "dashboard/", (_watch,), height=1_290),
    Picture("dashboard-dark", "dashboard/", (_watch,), theme="dark", height=1_290),
    Picture("dashboard-narrow", "dashboard/", (_watch,), width=400),
    Picture("jobs", "livejob/?queue=orders"),
    Picture("job", "livejob/?queue=payments&failures=1", (_first_job,)),
    Picture("finished", "livejob/finished/", height=900),
    Picture("queues", "queueentry/"),
    Picture("queue", "queueentry/orders/change/", height=1_200),
    Picture("recurring", "queueentry/recurring/", height=560),
    Picture("failed", "failedjob/"),
    Picture("morgue", "morguejob/"),
    Picture("morgue-job", "morguejob/", (_first_job,)),
    Picture("retry", "morguejob/", (_retry_all,), height=700),
    Picture("bulk-actions", "bulkaction/", (_order_all,), height=700),
    Picture("outbox", "outboxjob/"),
    Picture("inbox", "inboxentry/"),
    Picture("history", "hourlystat/?period=7d", height=1_500),
    Picture("pipeline-runs", "pipelinerun/", height=900),
)


def photograph(box: BrowserBox, site: str, folder: Path, only: str) -> None:
    """Save the pictures whose name contains ``only``."""
    browser = Browser(box, site)
    browser.login(get_user_model().objects.get(username="admin"))
    for picture in PICTURES:
        if only in picture.name:
            target = folder / f"{picture.name}.png"
            target.write_bytes(_small(_take(browser, picture)))
            print(f"{target.name:24} {target.stat().st_size / 1_000:6.0f} kB")


def _take(browser: Browser, picture: Picture) -> bytes:
    browser.theme(picture.theme)
    browser.size(picture.width, picture.height)  # the menu is as high as the window
    browser.open(ADMIN + picture.path)
    for step in picture.steps:
        step(browser)
    browser.run(_NEUTRAL, str(PROJECT.parent))
    browser.run("document.getAnimations().forEach(one => one.finish()); document.activeElement.blur()")
    tall = min(int(browser.run("return document.documentElement.scrollHeight")), picture.height)
    clip = {"x": 0, "y": 0, "width": picture.width, "height": tall, "scale": 1}
    options = {"captureBeyondViewport": True, "format": "png", "clip": clip}
    return base64.b64decode(browser.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])


def _small(picture: bytes) -> bytes:
    """Return a picture with a palette; its size is a third."""
    from PIL import Image

    small = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        quantized = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        quantized.save(small, format="PNG", optimize=True)
    return small.getvalue()
