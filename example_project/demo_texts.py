"""Texts that the demo prints at its start and at its end."""

from __future__ import annotations

import argparse

from demo_parts import HOST, Terminal


def welcome(options: argparse.Namespace, api_token: str, out: Terminal) -> str:
    """Return the addresses of the demo's pages."""
    url = f"http://{HOST}:{options.port}"

    def bold(text: str) -> str:
        return out.paint(text, "1")

    return f"""
  {bold("Slow Goods is open.")}

    Shop           {bold(url + "/")}
    What happens   {bold(url + "/what-happens/")}
    Admin          {bold(url + "/admin/")}   login admin, password admin
    Dashboard      {bold(url + "/admin/django_delayq/dashboard/")}
    HTTP API       {bold(url + "/delayq/v1/queues")}   Authorization: Token {api_token}

  An order that is not paid is cancelled after {bold(f"{options.cancel_after:g} s")}. Ctrl-C stops everything.
"""


def summary(counts: dict[str, float]) -> str:
    """Return what happened to the orders and payments."""
    late = ""
    if counts["latest_s"] is not None:
        late = f", each {counts['earliest_s']:.2f} to {counts['latest_s']:.2f} s after its due time"
    return f"""
  orders placed           {counts["placed"]}
    paid                  {counts["paid"]}
    cancelled by worker   {counts["cancelled_by_worker"]}{late}
    still open            {counts["waiting"]} (their jobs are kept: run the demo again)
  payment checks          {counts["payment_checks"]}, up to {counts["most_checks"]} for one payment
  payments refused        {counts["refused"]}
  calls to the warehouse  {counts["warehouse_calls"]}
  messages to customers   {counts["messages"]}
"""
