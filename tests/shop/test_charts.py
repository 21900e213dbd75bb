"""Tests of the page with charts that the example writes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from django_delayq.history import histograms
from django_delayq.history.periods import SeriesQuery, named
from django_delayq.history.series import summary
from shop import charts
from shop.seconds import Pieces
from tests.admin.pasts import lively_past
from tests.admin.support import cells


@pytest.mark.django_db
def test_a_page_has_all_charts_and_the_files_that_draw_them(tmp_path: Path) -> None:
    lively_past(30)
    period = named("24h")
    begins = [datetime(2026, 11, 22, 12, 0, second, tzinfo=UTC) for second in range(0, 30, 10)]
    slots = [[0] * histograms.BUCKETS for _ in begins]
    slots[1][4] = 7
    pieces = Pieces(10, begins, [5, 20, 0], [0, 5, 0], [3.0, 12.5, None], [9.0, 2500.0, None], slots)

    drawn = charts.by_the_hour(summary(SeriesQuery(period=period), period)) + charts.by_the_second(pieces, "shop.greet")
    page, *files = charts.write(tmp_path / "results", "The <history>", "a & b", drawn)

    html = page.read_text()
    assert "<h1>The &lt;history&gt;</h1>" in html and "<pre>a &amp; b</pre>" in html
    assert re.findall(r'<section class="dq-chart[^>]* id="([^"]+)"', html) == [
        "hours-throughput",
        "hours-lateness",
        "hours-lateness-map",
        "seconds-throughput",
        "seconds-lateness",
        "seconds-map",
    ]
    assert set(re.findall(r'(?:src|href)="([^"]+)"', html)) < {file.name for file in files}
    assert all(file.stat().st_size for file in files)
    assert cells(html.encode(), "seconds-throughput-table")[1] == ["12:00:10", "2.5", "0.5"]
    assert cells(html.encode(), "seconds-lateness-table")[1:] == [
        ["12:00:10", "12 ms", "2.5 s"],
        ["12:00:20", "–", "–"],
    ]
    assert 'class="dq-h8" title="12:00:10, &lt; 16 ms: 7">7</td>' in html
