"""What of the network a launch uses."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfperf.errors import HorovodError
from tfperf.parallel.launch.hosts import Host, address_of, is_this_machine, loopback_interface
from tfperf.parallel.launch.loopback import LOOPBACK

__all__ = ["Network", "exposure"]


@dataclass(frozen=True)
class Network:
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
    def loopback(cls) -> "Network":
        """Nothing but this machine."""
        return cls((loopback_interface(),), LOOPBACK)

    @classmethod
    def of(cls, interfaces: Sequence[str]) -> "Network":
        """These interfaces, which must have the same names on all machines."""
        return cls(tuple(interfaces), address_of(interfaces[0]))

    @classmethod
    def common(cls, hosts: Sequence[Host], seconds: int) -> "Network":
        """The interfaces over which all these hosts reach each other, as Horovod finds out by trying.

        Raises:
            HorovodError: there are none, or it took longer than this.
        """
        from horovod.runner.common.util import secret
        from horovod.runner.common.util.settings import Settings
        from horovod.runner.common.util.timeout import Timeout
        from horovod.runner.driver.driver_service import get_common_interfaces

        names = [host.name for host in hosts]
        elsewhere = [name for name in names if not is_this_machine(name)]
        timeout = Timeout(seconds, message="Timed out waiting for {activity}.")
        settings = Settings(key=secret.make_secret_key(), start_timeout=timeout, num_proc=len(names))
        try:
            interfaces = sorted(get_common_interfaces(settings, names, elsewhere) or ())
        except Exception as error:
            raise HorovodError(
                f"found no network interface that all of {', '.join(names)} share ({error}); "
                "name one with --network-interfaces"
            ) from error
        if not interfaces:
            raise HorovodError("a batch system hides the network interfaces; name one with --network-interfaces")
        return cls.of(interfaces)

    def variables(self, port: int, *, elastic: bool = False) -> dict[str, str]:
        """What tells a rank where the rendezvous server listens and which interface to use."""
        from horovod.runner.gloo_run import create_run_env_vars

        variables: dict[str, Any] = create_run_env_vars(self.address, list(self.interfaces), port, elastic)
        return {name: str(value) for name, value in variables.items()}


def exposure(hosts: Sequence[Host], interfaces: Sequence[str]) -> str:
    """What a launch that leaves this machine lets others do, and what to do about it, in one line."""
    where = ", ".join(interfaces) if interfaces else "the interfaces that the machines share"
    helpers = "" if interfaces else "; while they look for those, helpers listen on all interfaces"
    return (
        f"warning: this run uses the network ({', '.join(host.name for host in hosts)}): a rendezvous server here and "
        f"each rank listen on {where}, unencrypted and open to anyone who reaches them{helpers}; elastic workers "
        "listen on all interfaces. Horovod unpickles some of what they are sent, which lets the sender run code as "
        "you (CVE-2024-10190, CVE-2026-31234, unfixed in Horovod 0.28.1). Run it only in a network that you trust, "
        "behind a firewall" + (", and name its interface with --network-interfaces." if not interfaces else ".")
    )
