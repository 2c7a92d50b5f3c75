"""Commands on other machines, through ssh."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.parallel.launch.ending import Ending
from tfperf.processes import run

__all__ = ["SSH_FAILED", "check_host", "first_line", "ssh"]

SSH_FAILED = 255
"""Exit code of ssh itself where there is no connection, or no more."""

CHECK_SECONDS = 30
"""How long a host may take to answer through ssh before it counts as out of reach."""

FINDS = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
"""The variables by which an interpreter finds tfperf."""

_OPTIONS = {
    "BatchMode": "yes",  # never ask for a password
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",  # a host that is silent for three of these is lost
    "ServerAliveCountMax": "3",
}

_BEGIN = (
    "import json, os, sys; "
    "os.environ.update(json.loads(os.fdopen(0, 'rb', 0, closefd=False).readline())); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Reads the variables, and not a byte beyond them, and then becomes the command."""


def ssh(host: str, command: Sequence[str]) -> list[str]:
    """The command that runs a Python command line on a host, in the folder of the same name.

    Its standard input begins with the environment variables, see `first_line`, and holds it from then on. The variables
    are no arguments, so that nobody sees them in the list of processes and all of them may be longer than one argument.

    Unlike `horovodrun`, ssh is not told to accept any machine that claims to be that host.

    Args:
        host: a name or an address, as ssh knows it.
        command: begins with the path of an interpreter.
    """
    options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
    begin = [command[0], "-I", "-c", _BEGIN, *command]
    return ["ssh", *options, host, f"cd {shlex.quote(str(Path.cwd()))} 2>/dev/null; exec {shlex.join(begin)}"]


def first_line(environment: Mapping[str, str]) -> bytes:
    """How the standard input of a command that `ssh` runs begins: the variables that it gets beside the host's own."""
    return json.dumps(dict(environment)).encode() + b"\n"


def check_host(host: str, environment: Mapping[str, str], ending: Ending) -> None:
    """See to it that ranks can be started on a host.

    Raises:
        HorovodError: ssh does not reach it without a password, or this interpreter or tfperf is not there.
        LaunchEnded: the launch is to end.
    """
    command = ssh(host, [sys.executable, "-P", "-c", "import tfperf.processes.keeper"])
    finds = {name: value for name, value in environment.items() if name in FINDS}
    try:
        result = run(command, stdin=first_line(finds), deadline=CHECK_SECONDS, look=ending.look)
    except OSError as error:
        if isinstance(error, TimeoutError):
            words = f"{host} did not answer through ssh in {CHECK_SECONDS} s; try `ssh {host} true`"
            raise HorovodError(words) from error
        raise HorovodError(f"cannot run ssh: {error.strerror}") from error
    lines = result.errors.strip().splitlines()
    reason = lines[-1].strip() if lines else f"exit code {result.code}"
    if result.code == SSH_FAILED:
        raise HorovodError(f"cannot reach {host} through ssh without a password ({reason}); try `ssh {host} true`")
    if result.code:
        raise HorovodError(f"expected {sys.executable} with tfperf on {host}, as on this machine: {reason}")
