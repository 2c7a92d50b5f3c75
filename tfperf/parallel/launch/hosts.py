"""On which machines the ranks run, and whether all of them are this one."""

import ipaddress
import re
import shlex
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.parallel.launch.ending import Ending, LaunchEnded
from tfperf.parallel.launch.output import say
from tfperf.parallel.private_network import LOOPBACK
from tfperf.processes import run

__all__ = [
    "DiscoveryScript",
    "FixedHosts",
    "RankHost",
    "address_of",
    "is_this_machine",
    "loopback_interface",
    "parse_hosts",
    "read_hostfile",
]

SCRIPT_SECONDS = 10
"""A discovery script is asked once a second; one that takes this long hangs."""

_HOST = re.compile(r"(?P<name>\w[\w.-]*):(?P<slots>[1-9][0-9]{0,3})", re.ASCII)
_HOSTFILE_LINE = re.compile(r"(?P<name>\w[\w.-]*)\s+slots\s*=\s*(?P<slots>[1-9][0-9]{0,3})", re.ASCII)


@dataclass(frozen=True)
class RankHost:
    """A machine, by name or IPv4 address, and how many ranks it may run."""

    name: str
    slots: int


def parse_hosts(text: str) -> tuple[RankHost, ...]:
    """Read `name:slots,name:slots`.

    Raises:
        HorovodError: it reads otherwise, or names a host twice.
    """
    return _without_repetition(_parse(_HOST, part.strip(), "name:slots") for part in text.split(","))


def read_hostfile(path: Path) -> tuple[RankHost, ...]:
    """Read a file with a line `name slots=N` for each host; empty lines and those that begin with # do not count.

    Raises:
        HorovodError: it cannot be read, names no host, or has another line.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise HorovodError(f"cannot read the hosts in {path}: {error}") from error
    hosts = _without_repetition(
        _parse(_HOSTFILE_LINE, line, "name slots=N") for line in lines if line and not line.startswith("#")
    )
    if not hosts:
        raise HorovodError(f"expected a line `name slots=N` for each host in {path}, it has none")
    return hosts


@dataclass(frozen=True)
class FixedHosts:
    """Hosts that stay, for elastic training."""

    hosts: tuple[RankHost, ...]

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """These, as Horovod's elastic driver asks for them."""
        return {host.name: host.slots for host in self.hosts}

    def stop(self) -> None:
        """Do nothing: they are known."""


class DiscoveryScript:
    """A program that prints the hosts there are now, `name:slots` or `name` in each line; for elastic training.

    Takes the place of Horovod's own class, which starts a second Python each second to start the script.

    Args:
        command: the program, with its arguments if it has any.
        ending: when this is asked for, the script is ended.
        only_this_machine: hosts elsewhere are left out, as the run listens on loopback only.
    """

    def __init__(self, command: str, ending: Ending | None = None, *, only_this_machine: bool = False) -> None:
        self._command = command
        self._ending = ending or Ending()
        self._stopped = False
        self._only_this_machine = only_this_machine
        self._known: tuple[RankHost, ...] = ()
        self._said: set[str] = set()

    def hosts(self) -> tuple[RankHost, ...]:
        """The hosts there are now.

        Raises:
            HorovodError: the script fails, hangs, or prints something else.
            LaunchEnded: the answer is not wanted any more.
        """
        failed = f"the host discovery script {self._command!r} failed"
        try:
            result = run(shlex.split(self._command), deadline=SCRIPT_SECONDS, look=self._look)
        except TimeoutError as error:
            raise HorovodError(f"{failed}: it did not end within {SCRIPT_SECONDS} s") from error
        except (OSError, ValueError, IndexError) as error:
            raise HorovodError(f"{failed}: {error}") from error
        if result.code:
            *_, last = ["", *result.errors.strip().splitlines()]
            raise HorovodError(f"{failed}: exit code {result.code}{last and f', {last}'}")
        lines = dict.fromkeys(line.strip() for line in result.output.splitlines() if line.strip())
        return _without_repetition(_parse(_HOST, line if ":" in line else f"{line}:1", "name:slots") for line in lines)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts there are now, as Horovod's elastic driver asks for them; when the script fails, those before."""
        try:
            self._known = self.hosts()
        except HorovodError as error:
            self._say_once(str(error))
        except LaunchEnded:
            pass
        return {host.name: host.slots for host in self._known if self._is_wanted(host)}

    def stop(self) -> None:
        """End a script that runs: its answer is not wanted any more."""
        self._stopped = True

    def _look(self, _: object) -> None:
        self._ending.look()
        if self._stopped:
            raise LaunchEnded

    def _is_wanted(self, host: RankHost) -> bool:
        if not self._only_this_machine or is_this_machine(host.name):
            return True
        self._say_once(
            f"{host.name} is left out: the run began on this machine alone and listens on loopback only; "
            "start it with --network-interfaces to add other machines"
        )
        return False

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            say(message)


def is_this_machine(host: str) -> bool:
    """Whether a host's name or address is one of this machine's, loopback or any other."""
    import psutil

    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False  # perhaps a name that only ssh knows
    return all(address in own or ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def loopback_interface() -> str:
    """The name of the network interface that has 127.0.0.1.

    Raises:
        HorovodError: there is none.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            return str(name)
    raise HorovodError(f"expected a network interface with the address {LOOPBACK}, this machine has none")


def address_of(interface: str) -> str:
    """The IPv4 address of one of this machine's network interfaces.

    Raises:
        HorovodError: there is no such interface, or it has none.
    """
    import psutil

    interfaces = psutil.net_if_addrs()
    for address in interfaces.get(interface, ()):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise HorovodError(
        f"expected a network interface with an IPv4 address, received {interface!r}; there are: {', '.join(interfaces)}"
    )


def _parse(pattern: re.Pattern[str], text: str, form: str) -> RankHost:
    match = pattern.fullmatch(text)
    if not match:
        raise HorovodError(f"expected a host as {form}, received {text!r}")
    return RankHost(match["name"], int(match["slots"]))


def _without_repetition(hosts: Iterable[RankHost]) -> tuple[RankHost, ...]:
    hosts = tuple(hosts)
    twice = [name for name, times in Counter(host.name for host in hosts).items() if times > 1]
    if twice:
        raise HorovodError(f"expected each host once, received {twice[0]} several times")
    return hosts
