"""Draw faults by a mutator: ``python -m tests.faults.drawing --number N``.

The list ``drawn.toml`` gets so many new ones that it has N, in proportion to the code of each package. They are no
selection of what the tests are known to catch. ``python -m tests.faults`` then looks for a test that catches each. A
fault that none catches stays in the list without tests, until somebody writes the missing test, or writes next to it
why the change makes no difference (``equivalent``). One with which the package cannot be imported shows nothing about
the tests: take it out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .catalogue import DRAWN, Fault, load
from .mutations import Mutation, draw


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.drawing", description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, required=True, help="number of faults in the list afterwards")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=(), metavar="FOLDER", help="draw in these folders of the package")
    options = parser.parse_args(arguments)
    known = load(DRAWN)
    known_places = [(fault.file, fault.old) for fault in known]
    new = draw(options.number, options.seed, known=known_places, folders=options.only)
    with DRAWN.open("a", encoding="utf-8") as file:
        file.writelines(map(_entry, new))
    print(f"{len(new)} faults drawn")
    return 0


def _entry(mutation: Mutation) -> str:
    before, after = (" ".join(text.split()) for text in (mutation.old, mutation.new))
    fault = Fault(
        f"{mutation.where or Path(mutation.file).stem}: `{before}` becomes `{after}`",
        mutation.file,
        mutation.old,
        mutation.new,
        (),
    )
    keys = ("name", "file", "old", "new", "tests")
    return "\n[[fault]]\n" + "".join(f"{key} = {json.dumps(getattr(fault, key), ensure_ascii=False)}\n" for key in keys)


if __name__ == "__main__":
    sys.exit(main())
