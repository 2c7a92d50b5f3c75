"""A fixed number of ranks: all start, and the first that fails, or does not come, ends all."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from tfperf.parallel.launch.environment import START_TIMEOUT, tf_configs
from tfperf.parallel.launch.hosts import RankHost, is_this_machine
from tfperf.parallel.launch.network import RankNetwork
from tfperf.parallel.launch.ranks import Ended, Failure, Ranks, first_cause
from tfperf.parallel.launch.rendezvous import ProcessManager, Rendezvous
from tfperf.parallel.rank_names import name_rank
from tfperf.processes.resting import IDLE_LIMIT, LOOK, Rest

__all__ = ["run_static", "watched_arrivals"]

PATIENCE = 3.0
"""Seconds to wait for the rank that caused a failure once a rank has failed that blames another one."""


def run_static(
    ranks: Ranks,
    hosts: Iterable[RankHost],
    network: RankNetwork,
    *,
    number: int,
    tf_config_port: int | None = None,
    parameter_servers: int = 0,
    mpi: bool = False,
    start_timeout: float = START_TIMEOUT,
    idle_limit: float = IDLE_LIMIT,
) -> Failure | None:
    """Run so many ranks on these hosts to their end; why they failed, if they did.

    With parameter servers the others are ended when rank 0 has finished: a TensorFlow server never ends by itself.

    Args:
        ranks: runs them.
        hosts: where, in their order.
        network: what they use of it.
        number: how many.
        tf_config_port, parameter_servers: for TF_CONFIG, see `tf_configs`; None: the ranks do not get it.
        mpi: they exchange through MPI's shared memory, all on this machine.
        start_timeout: seconds that ranks under MPI wait for each other to start; under Gloo their environment says so.
        idle_limit: seconds that a rank may do nothing while others wait for it in `hvd.init()`.

    Raises:
        HorovodError: a rank cannot be started, or TF_CONFIG cannot be.
    """
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.gloo_run import create_slot_env_vars

    slots = get_host_assignments([HostInfo(host.name, host.slots) for host in hosts], number, number)
    configs = None
    if tf_config_port is not None:
        names = [slot.hostname for slot in slots]
        configs = tf_configs(names, tf_config_port, parameter_servers=parameter_servers)
    width = len(str(number - 1))
    cause_found = threading.Event()

    hosts_of = {slot.rank: None if is_this_machine(slot.hostname) else slot.hostname for slot in slots}
    rank_names = {rank: name_rank(rank, host) for rank, host in hosts_of.items()}

    def run(slot: Any) -> Ended:
        try:
            ended = ranks.run(
                rank_names[slot.rank],
                label=f"{slot.rank:0{width}}",
                prefix=f"[{slot.rank}] " if number > 1 else "",
                variables=shared
                | create_slot_env_vars(slot)
                | ({"TF_CONFIG": configs[slot.rank]} if configs else {})
                | (manager.variables(slot.rank) if manager else {}),
                host=hosts_of[slot.rank],
            )
        except BaseException:
            ranks.end()
            raise
        if ended.failed:
            if ended.blames_others:
                cause_found.wait(PATIENCE)
            cause_found.set()
            ranks.end()
        elif parameter_servers and slot.rank == 0:
            ranks.end()
        return ended

    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(ProcessManager(number, start_timeout)) if mpi else None
        rendezvous = stack.enter_context(Rendezvous(network.address))
        missing = stack.enter_context(
            watched_arrivals(rendezvous.came, rank_names, ranks.process, ranks.end, idle_limit)
        )
        pool = stack.enter_context(ThreadPoolExecutor(number))
        shared = network.variables(rendezvous.start())
        rendezvous.init(slots)
        try:
            ended = list(pool.map(run, slots))
        finally:
            ranks.end()
    return Failure(f"{missing[0]}; all ranks were ended", 1) if missing else _failure(ended)


def _failure(ended: list[Ended]) -> Failure | None:
    cause = first_cause(ended)
    if cause is None:
        return None
    early = [rank.name for rank in ended if rank.code == 0]
    words = f"{cause}; the other ranks were ended" if len(ended) > 1 else str(cause)
    if cause.blames_others and early:
        words = f"{cause}; it waited for {', '.join(early)}, which had finished"
    return Failure(words, cause.code)


@contextlib.contextmanager
def watched_arrivals(
    came: Collection[int],
    names: Mapping[int, str],
    process_of: Callable[[str], int | None],
    end: Callable[[], None],
    idle_limit: float,
) -> Iterator[list[str]]:
    """Look, until all ranks have come, whether one of those that are missing does nothing.

    Args:
        came: the ranks that wait for the others or have done so; it grows.
        names: rank -> as the user is told.
        process_of: gives the process of a rank by this name; None: it is not on this machine, or has ended.
        end: called once a rank is found, before the ranks that wait give up.
        idle_limit: seconds for which it does nothing.

    Yields:
        A list in which then stands, in one line, which rank it was.
    """
    found: list[str] = []
    done = threading.Event()

    def watch() -> None:
        rests: dict[int, Rest] = {}
        while len(came) < len(names) and not done.wait(LOOK):
            for rank in names.keys() - came if came else ():
                if (process := process_of(names[rank])) is None:
                    continue
                with contextlib.suppress(psutil.NoSuchProcess):
                    if rank not in rests:
                        rests[rank] = Rest(process, with_descendants=True)
                    rests[rank].look()
                    if rests[rank].idle > idle_limit:
                        how = "is stopped" if rests[rank].stopped else "has done nothing"
                        waiting = ", ".join(names[one] for one in sorted(came))
                        words = f"{names[rank]} has not come to hvd.init(), and {how} for {idle_limit:g} s"
                        found.append(f"{words}; {waiting} waited for it")
                        end()
                        return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join(2 * LOOK)
