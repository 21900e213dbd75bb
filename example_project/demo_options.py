"""Options of the demo's command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from demo_parts import ROOT


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options. The variable DELAYQ_DEMO_PORT sets the default port."""
    parser = argparse.ArgumentParser(description="Run the example shop in one terminal.")
    port = os.environ.get("DELAYQ_DEMO_PORT") or "8000"
    parser.add_argument("--port", type=_port, default=port, help="port of the web server (default: 8000)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="folder for the data (default: .demo)")
    parser.add_argument("--reset", action="store_true", help="start with an empty folder")
    parser.add_argument(
        "--seconds", type=float, help="end after this time; exit code 1 if no order was cancelled by then"
    )
    parser.add_argument("--cancel-after", type=float, default=20, help="seconds until an unpaid order is cancelled")
    parser.add_argument("--rate", type=float, default=0.4, help="orders per second by generated customers; 0 = none")
    parser.add_argument("--pay", type=float, default=0.6, help="share of these orders that get paid")
    parser.add_argument("--traffic-seconds", type=float, default=3600, help="stop placing orders after this time")
    parser.add_argument("--no-colour", action="store_true", help="plain text (also: NO_COLOR=1, or no terminal)")
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 1 to 65535")
    return int(text)
