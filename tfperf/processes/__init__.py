"""Every child process of tfperf: its start, its limits, and its end with all that it started.

- `ChildProcess`: a command that runs.
- `run`: a command that is waited for.
- `Dialogue`: questions to a command, and its answers, as lines of JSON.
- `WorkerProcesses`: functions in processes of their own, at the same time.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfperf.processes.child_process import DEVNULL, PIPE, STDOUT, ChildProcess
    from tfperf.processes.dialogue import Dialogue
    from tfperf.processes.patience import Patience
    from tfperf.processes.running import Finished, LastBytes, run
    from tfperf.processes.workers import WorkerProcesses

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "ChildProcess",
    "Dialogue",
    "Finished",
    "LastBytes",
    "Patience",
    "WorkerProcesses",
    "run",
]

_HOMES = {
    "ChildProcess": "child_process",
    "DEVNULL": "child_process",
    "Dialogue": "dialogue",
    "Finished": "running",
    "LastBytes": "running",
    "PIPE": "child_process",
    "Patience": "patience",
    "STDOUT": "child_process",
    "WorkerProcesses": "workers",
    "run": "running",
}
"""Public name -> the module here, which is loaded when the name is asked for: the keeper behind ssh needs none."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
