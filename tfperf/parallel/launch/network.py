"""What of the network a launch uses."""

import ipaddress
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfperf.errors import HorovodError
from tfperf.parallel.launch.access import listen_on
from tfperf.parallel.launch.ending import Ending
from tfperf.parallel.launch.hosts import RankHost, address_of, is_this_machine, loopback_interface
from tfperf.parallel.private_network import LOOPBACK
from tfperf.processes import Finished, run

__all__ = ["RankNetwork", "exposure", "listen_where_ranks_talk", "print_common_interfaces"]

FOUND = "interfaces: "
"""What the line of `print_common_interfaces` begins with; Horovod and its helpers write others."""

_PRINT_COMMON_INTERFACES = f"from {__name__} import print_common_interfaces as main; main()"


@dataclass(frozen=True)
class RankNetwork:
    """The interfaces that ranks talk over, and this machine's address there.

    Attributes:
        interfaces: their names; Gloo takes the first, NCCL any.
        address: this machine's IPv4 address on the first; the rendezvous server listens on it.
    """

    interfaces: tuple[str, ...]
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether nothing outside this machine can reach it."""
        return ipaddress.ip_address(self.address).is_loopback

    @classmethod
    def loopback(cls) -> "RankNetwork":
        """Nothing but this machine."""
        return cls((loopback_interface(),), LOOPBACK)

    @classmethod
    def of(cls, interfaces: Sequence[str]) -> "RankNetwork":
        """These interfaces, which must have the same names on all machines."""
        return cls(tuple(interfaces), address_of(interfaces[0]))

    @classmethod
    def common(cls, hosts: Sequence[RankHost], seconds: int, ending: Ending) -> "RankNetwork":
        """The interfaces over which all these hosts reach each other, as Horovod finds out by trying.

        Raises:
            HorovodError: there are none, or it took longer than this.
            LaunchEnded: the launch is to end.
        """
        names = [host.name for host in hosts]
        command = [sys.executable, "-P", "-c", _PRINT_COMMON_INTERFACES, str(seconds), *names]
        try:
            result = run(command, deadline=2 * seconds, look=ending.look)
            *_, last = ["", *result.errors.strip().splitlines()]
            reason = last or f"exit code {result.code}"
        except TimeoutError as error:
            result, reason = Finished(1, "", ""), str(error)
        if result.code:
            raise HorovodError(
                f"found no network interface that all of {', '.join(names)} share ({reason}); "
                "name one with --network-interfaces"
            )
        answers = [line for line in result.output.splitlines() if line.startswith(FOUND)]  # helpers print, too
        interfaces = json.loads(answers[-1].removeprefix(FOUND))
        if not interfaces:
            raise HorovodError("a batch system hides the network interfaces; name one with --network-interfaces")
        return cls.of(interfaces)

    def variables(self, port: int, *, elastic: bool = False) -> dict[str, str]:
        """What tells a rank where the rendezvous server listens and which interface to use."""
        from horovod.runner.gloo_run import create_run_env_vars

        variables: dict[str, Any] = create_run_env_vars(self.address, list(self.interfaces), port, elastic)
        return {name: str(value) for name, value in variables.items()}


def listen_where_ranks_talk() -> None:
    """Have a rank's process listen where its ranks talk, see `listen_on`; a process that is no rank stays as it is."""
    if interface := os.environ.get("HOROVOD_GLOO_IFACE"):
        listen_on(address_of(interface))


def exposure(hosts: Sequence[RankHost], interfaces: Sequence[str]) -> str:
    """What a launch that leaves this machine lets others do, and what to do about it, in one line."""
    where = ", ".join(interfaces) if interfaces else "the interfaces that the machines share"
    helpers = "" if interfaces else "; while they look for those, helpers listen on all interfaces"
    return (
        f"warning: this run uses the network ({', '.join(host.name for host in hosts)}): a rendezvous server here and "
        f"each rank listen on {where}, unencrypted and open to anyone who reaches them{helpers}; elastic workers of "
        "another command than `python` listen on all interfaces. Horovod unpickles some of what they are sent, which "
        "lets the sender run code as you (CVE-2024-10190, CVE-2026-31234, unfixed in Horovod 0.28.1). Run it only in a "
        "network that you trust, behind a firewall"
        + (", and name its interface with --network-interfaces." if not interfaces else ".")
    )


def print_common_interfaces() -> None:
    """Print the network interfaces that hosts share as JSON, in a line that begins with `FOUND`.

    The program's arguments are the seconds that it may take, and the hosts. Horovod finds the interfaces with helpers
    on all hosts; in a process of its own they end with it, whenever that is.
    """
    from horovod.runner.common.util import secret
    from horovod.runner.common.util.settings import Settings
    from horovod.runner.common.util.timeout import Timeout
    from horovod.runner.driver.driver_service import get_common_interfaces

    seconds, names = int(sys.argv[1]), sys.argv[2:]
    listen_on("")  # which interfaces there are is the question
    timeout = Timeout(seconds, message="Timed out waiting for {activity}.")
    settings = Settings(key=secret.make_secret_key(), start_timeout=timeout, num_proc=len(names))
    elsewhere = [name for name in names if not is_this_machine(name)]
    found = sorted(get_common_interfaces(settings, names, elsewhere) or ())
    print(f"\n{FOUND}{json.dumps(found)}", flush=True)
