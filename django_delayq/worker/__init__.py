"""Worker processes: reserve jobs, run them and settle them. Depends on the core, not on Django.

Every package above it may import it. Names are imported on first use, because a web process that only calls
``current_job`` needs none of the processes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .attempt import Attempt
    from .changes import Changes
    from .child import EXIT_OK, EXIT_RECYCLE, EXIT_STUCK, ChildSpec, adopt, child_spec, leave
    from .config import WorkerConfig
    from .current import CurrentJob, current_job
    from .hooks import Hooks
    from .loop import Duty
    from .middleware import Call, Middleware
    from .supervisor import Supervisor
    from .worker import Worker

__all__ = [
    "EXIT_OK",
    "EXIT_RECYCLE",
    "EXIT_STUCK",
    "Attempt",
    "Call",
    "Changes",
    "ChildSpec",
    "CurrentJob",
    "Duty",
    "Hooks",
    "Middleware",
    "Supervisor",
    "Worker",
    "WorkerConfig",
    "adopt",
    "child_spec",
    "current_job",
    "leave",
]

_HOME: Final = {
    "Changes": "changes",
    **dict.fromkeys(("EXIT_OK", "EXIT_RECYCLE", "EXIT_STUCK", "ChildSpec", "adopt", "child_spec", "leave"), "child"),
    "WorkerConfig": "config",
    **dict.fromkeys(("CurrentJob", "current_job"), "current"),
    "Hooks": "hooks",
    "Duty": "loop",
    **dict.fromkeys(("Call", "Middleware"), "middleware"),
    "Attempt": "attempt",
    "Supervisor": "supervisor",
    "Worker": "worker",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
