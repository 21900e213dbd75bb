#!/usr/bin/env python
"""Django's command line for the example shop."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_site.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(
            f"Django cannot be imported by {sys.executable}: {error}\n"
            "Run the shop with the project's own environment: `make demo`, or `pip install -e .` first."
        ) from error
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
