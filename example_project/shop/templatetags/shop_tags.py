"""Template filters for times and money."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from shop.words import span

register = template.Library()
register.filter("span", span)


@register.filter
def milliseconds(value: timedelta) -> int:
    """Return a duration in milliseconds for JavaScript."""
    return int(value.total_seconds() * 1000)


@register.filter
def money(value: Decimal) -> str:
    return f"€\N{NO-BREAK SPACE}{value:,.2f}"


@register.simple_tag
def picture(slug: str) -> SafeString:
    """Return the drawing of a product, or a plain box."""
    return render_to_string([f"shop/art/{slug}.svg", "shop/art/box.svg"])
