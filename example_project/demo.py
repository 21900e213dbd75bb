#!/usr/bin/env python
"""Demo: the example shop with its Redis, web server, worker and customers, in one terminal.

    make demo                      (or: python example_project/demo.py)
    make demo PORT=8001            when port 8000 is taken

All files are in ``.demo/`` beside the project: the SQLite database and the Redis data. Stop it with Ctrl-C and start it
again: the waiting orders are still cancelled.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from stage import HERE, HOST, NEEDED, ROOT, Failed, Stage, check_packages

WELCOME = """
  Slow Goods is open.

    Shop           {url}/
    What happens   {url}/what-happens/
    Admin          {url}/admin/   login admin, password admin
    Dashboard      {url}/admin/django_delayq/dashboard/
    HTTP API       {url}/delayq/v1/queues   Authorization: Token {token}

  An order that is not paid is cancelled after {wait:g} s. Ctrl-C stops everything.
"""
SUMMARY = """
  orders placed           {placed}
    paid                  {paid}
    cancelled by worker   {cancelled_by_worker}, {earliest_s} to {latest_s} s after their due times
    still open            {waiting} (their jobs are kept: run the demo again)
  payment checks          {payment_checks}, up to {most_checks} for one payment
  payments refused        {refused}
  calls to the warehouse  {warehouse_calls}
  messages to customers   {messages}
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options. The variable DELAYQ_DEMO_PORT sets the default port."""
    parser = argparse.ArgumentParser(description="Run the example shop in one terminal.")
    add = parser.add_argument
    add("--port", type=int, default=os.environ.get("DELAYQ_DEMO_PORT") or "8000", help="of the web server (8000)")
    add("--folder", type=Path, default=ROOT / ".demo", help="folder for the data (default: .demo)")
    add("--reset", action="store_true", help="start with an empty folder")
    add("--seconds", type=float, help="end after this time; exit code 1 if no order was cancelled by then")
    add("--cancel-after", type=float, default=20, help="seconds until an unpaid order is cancelled")
    add("--rate", type=float, default=0.4, help="orders per second by generated customers; 0 = none")
    return parser.parse_args(arguments)


def check_port(port: int) -> None:
    """Raise Failed if the port is taken."""
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError):
        with socket.create_server((HOST, 0)) as other:
            choice = f"Choose another one: make demo PORT={other.getsockname()[1]}"
        raise Failed(f"Port {port} on {HOST} is taken by another program.\n{choice}") from None


def begin(stage: Stage) -> None:
    """Start the programs."""
    options = stage.options
    wait = options.cancel_after
    defaults = {"SHOP_REMIND_BEFORE": wait * 0.4, "SHOP_WAREHOUSE_AFTER": wait * 0.4, "SHOP_RESTOCK_AFTER": 20}
    defaults |= {"SHOP_REPORT_EVERY": 20, "SHOP_CAMPAIGN_SPREAD": 12}
    stage.env = {name: str(value) for name, value in defaults.items()} | stage.env | {"SHOP_CANCEL_AFTER": str(wait)}
    stage.manage("migrate --verbosity 0", most=0)
    stage.manage("shop_seed --demo-user", most=1)
    stage.start("worker", "delayq_worker")
    stage.serve()
    if options.rate > 0:
        seconds = options.seconds or 3600
        stage.start("customers", "shop_traffic", "--rate", str(options.rate), "--seconds", str(seconds))
    url, token = f"http://{HOST}:{options.port}", stage.env["SHOP_API_TOKEN"]
    stage.plain(WELCOME.format(url=url, token=token, wait=wait))


def wait(stage: Stage) -> None:
    """Wait for the end of the time, and keep Redis running, so that a user may try its loss.

    Raises:
        Failed: a program ended.
    """
    until = time.monotonic() + (stage.options.seconds or float("inf"))
    while time.monotonic() < until:
        for part in [part for part in stage.parts if part.poll() is not None]:
            if part.name != "customers" or part.returncode:
                code = part.returncode
                raise Failed(f"The {part.name} ended unexpectedly (exit code {code}); its output is above.")
            stage.end(part)
            stage.line("demo", "the customers have left; the shop stays open")
        if not stage.redis.running:
            stage.line("redis", "has ended; restarting it on its data")
            stage.redis.start()
        time.sleep(0.2)  # other processes: there is no event to wait for


def finish(stage: Stage, since: float) -> None:
    """Stop the programs, and print what happened.

    Raises:
        Failed: no order was cancelled.
    """
    stage.line("demo", "stopping …")
    stage.stop()
    command = [sys.executable, "manage.py", "shop_summary", "--since", str(since)]
    done = subprocess.run(command, env=stage.env, cwd=HERE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    if done.returncode:
        raise Failed("The summary cannot be read: the shop's database is not complete.")
    counts = json.loads(done.stdout.splitlines()[-1])
    (stage.folder / "summary.json").write_text(json.dumps(counts))
    stage.plain(SUMMARY.format(**counts))
    if stage.options.seconds and not counts["cancelled_by_worker"]:
        raise Failed("No order was cancelled in this time: see the output of the worker above.")


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        check_packages(NEEDED, "demo", "demo,embedded")
        check_port(options.port)
        with Stage(options, empty=options.reset) as stage:
            since = time.time()
            try:
                begin(stage)
                wait(stage)
            except KeyboardInterrupt:
                stage.plain("")
            finish(stage, since)
    except Failed as error:
        print(f"\n{error}\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
