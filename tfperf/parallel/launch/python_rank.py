"""A Python program as an elastic rank, whose service listens where the rank's network is, and to its own user.

    python -m tfperf.parallel.launch.python_rank SCRIPT [ARGUMENT ...]     or: -m MODULE ..., -c CODE ...

A script that uses plain `horovod.tensorflow.elastic` starts a service on all interfaces, and no variable of Horovod's
says otherwise. So the launcher has this run such a script. It does not cover a command that is no Python, such as a
shell script which starts Python, another Python than the launcher's, and a Python with other options than those in
`elastic.OPTIONS`.
"""

import runpy
import sys
from pathlib import Path

from tfperf.parallel.launch.network import listen_where_ranks_talk

__all__ = ["main"]


def main() -> None:
    """Run the program in the arguments, as Python itself would."""
    listen_where_ranks_talk()
    kind, *rest = sys.argv[1:]
    if kind in ("-c", "-m"):
        target, *rest = rest
    else:
        target = kind
    if not sys.flags.safe_path:  # the folder of the script, or the one where it runs; `-m` has put that there
        sys.path[0] = {"-c": "", "-m": sys.path[0]}.get(kind, str(Path(target).resolve().parent))
    sys.argv = ["-c" if kind == "-c" else target, *rest]
    if kind == "-c":
        exec(compile(target, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})  # noqa: S102
    elif kind == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
