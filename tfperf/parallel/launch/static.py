"""A fixed number of ranks: all start, and the first that fails ends all."""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tfperf.parallel.launch.hosts import Host, is_this_machine
from tfperf.parallel.launch.network import Network
from tfperf.parallel.launch.ranks import Ended, Failure, Ranks, first_cause
from tfperf.parallel.launch.rendezvous import Rendezvous

__all__ = ["run_static"]

PATIENCE = 3.0
"""Seconds to wait for the rank that caused a failure once a rank has failed that blames another one."""


def run_static(ranks: Ranks, hosts: Iterable[Host], network: Network, *, number: int) -> Failure | None:
    """Run so many ranks on these hosts to their end; why they failed, if they did.

    Raises:
        HorovodError: a rank cannot be started.
    """
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.gloo_run import create_slot_env_vars

    slots = get_host_assignments([HostInfo(host.name, host.slots) for host in hosts], number, number)
    width = len(str(number - 1))
    cause_found = threading.Event()

    def run(slot: Any) -> Ended:
        try:
            ended = ranks.run(
                f"rank {slot.rank}",
                label=f"{slot.rank:0{width}}",
                prefix=f"[{slot.rank}] " if number > 1 else "",
                variables=shared | create_slot_env_vars(slot),
                host=None if is_this_machine(slot.hostname) else slot.hostname,
            )
        except BaseException:
            ranks.end()
            raise
        if ended.failed:
            if ended.blames_others:
                cause_found.wait(PATIENCE)
            cause_found.set()
            ranks.end()
        return ended

    with Rendezvous(network.address) as rendezvous, ThreadPoolExecutor(number) as pool:
        shared = network.variables(rendezvous.start())
        rendezvous.init(slots)
        try:
            ended = list(pool.map(run, slots))
        finally:
            ranks.end()
    return _failure(ended)


def _failure(ended: list[Ended]) -> Failure | None:
    cause = first_cause(ended)
    if cause is None:
        return None
    early = [rank.name for rank in ended if rank.code == 0]
    words = f"{cause}; the other ranks were ended" if len(ended) > 1 else str(cause)
    if cause.blames_others and early:
        words = f"{cause}; it waited for {', '.join(early)}, which had finished"
    return Failure(words, cause.code)
