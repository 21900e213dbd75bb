"""Column names, compared as Spark compares them: ignoring case unless ``spark.sql.caseSensitive`` is true.

All column names of this package are in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from ..core.errors import Misconfigured
from ..core.inputs import short

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CASE_SENSITIVE: Final = "spark.sql.caseSensitive"


def column_of(frame: DataFrame, name: str) -> str | None:
    """Return the name of the frame's column that Spark resolves ``name`` to; None = there is none.

    Raises:
        Misconfigured: several columns match.
    """
    sensitive = _is_true(frame.sparkSession.conf.get(_CASE_SENSITIVE))
    matching = [one for one in frame.columns if one == name or (not sensitive and one.lower() == name.lower())]
    if len(matching) > 1:
        raise Misconfigured(
            f"the input has several columns {short(name)} ({', '.join(matching)}); leave all but one out"
        )
    return matching[0] if matching else None


def fault_of_case(names: Iterable[str]) -> str:
    """Return an error text for names with capital letters if the task's session is case-sensitive; else "".

    The worker that plans for a task has no access to this setting of the session.
    """
    context: Any = TaskContext.get()
    if context is None or not _is_true(context.getLocalProperty(_CASE_SENSITIVE)):
        return ""
    wrong = next((name for name in names if name != name.lower()), None)
    if wrong is None:
        return ""
    return f"there is no column {short(wrong)}; write it {wrong.lower()!r}, because {_CASE_SENSITIVE} is true"


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"
