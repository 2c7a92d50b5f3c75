"""Which commands run as `python_rank`, so that the services of an elastic rank are this user's alone."""

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MODULE", "with_local_services"]

OPTIONS = re.compile("-[bBdOqsuvP]+")
"""Options of an interpreter that say nothing about where it finds modules, and take no value."""

MODULE = "tfperf.parallel.launch.python_rank"


def with_local_services(command: Sequence[str], search_path: str) -> list[str]:
    """The command that runs a Python program this way; another command is left as it is.

    Args:
        command: a program and its arguments.
        search_path: where programs are found, as PATH has it.
    """
    program, *words = command
    found = shutil.which(program, path=search_path)
    if found is None or Path(found).parent != Path(sys.executable).parent or not Path(found).name.startswith("python"):
        return list(command)
    number = next((at for at, word in enumerate(words) if not OPTIONS.fullmatch(word)), len(words))
    target = words[number : number + 1]
    if not target or (target[0].startswith("-") and target[0] not in {"-c", "-m"}):
        return list(command)
    return [program, *words[:number], "-m", MODULE, *words[number:]]
