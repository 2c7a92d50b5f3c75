"""Ranks that come and go: training goes on while enough hosts are left."""

import re
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tfperf.errors import HorovodError
from tfperf.parallel.launch.ending import Ending, LaunchEnded, watched
from tfperf.parallel.launch.hosts import is_this_machine
from tfperf.parallel.launch.network import RankNetwork
from tfperf.parallel.launch.output import say
from tfperf.parallel.launch.ranks import Ended, Failure, Ranks, first_cause
from tfperf.parallel.launch.rendezvous import Rendezvous
from tfperf.parallel.rank_names import name_rank

__all__ = ["MODULE", "Discovery", "run_elastic", "with_local_services"]

STOP_SECONDS = 2.0
"""Time for Horovod's driver to stop; it may wait for a host that does not answer."""

OPTIONS = re.compile("-[bBdOqsuvP]+")
"""Options of an interpreter that say nothing about where it finds modules, and take no value."""

MODULE = "tfperf.parallel.launch.python_rank"


class Discovery(Protocol):
    """Knows the hosts there are now, as Horovod's elastic driver asks for them: name -> how many ranks."""

    def find_available_hosts_and_slots(self) -> dict[str, int]: ...  # noqa: D102

    def stop(self) -> None:
        """Let who asks not wait for the answer."""


def run_elastic(
    ranks: Ranks,
    discovery: Discovery,
    network: RankNetwork,
    ending: Ending,
    *,
    start: int,
    least: int,
    most: int | None,
) -> Failure | None:
    """Run ranks on the hosts there are, until those that are left have finished; why not, if they have not.

    A host with a rank that fails is left out from then on, with all its ranks.

    Args:
        ranks: runs them.
        discovery: asked once a second.
        network: what they use of it.
        ending: when this is asked for, all ends.
        start: how many ranks to wait for before training starts.
        least: with fewer, the ranks wait for more.
        most: more are not started; None: no limit.

    Raises:
        LaunchEnded: the launch is to end.
        HorovodError: there were not enough hosts in HOROVOD_ELASTIC_TIMEOUT seconds (600).
    """
    from horovod.runner.elastic.driver import ElasticDriver
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler
    from horovod.runner.gloo_run import create_slot_env_vars

    ends: dict[str, Ended] = {}

    def run(slot: Any, end_on: Sequence[threading.Event]) -> tuple[int, float]:
        place = f"{slot.hostname}[{slot.local_rank}]"
        try:
            ended = ranks.run(
                name_rank(slot.rank, place),
                label=f"{slot.hostname}.{slot.local_rank}",
                prefix=f"[{slot.hostname}:{slot.local_rank}] ",  # its rank changes when hosts come and go
                variables=shared | create_slot_env_vars(slot),
                host=None if is_this_machine(slot.hostname) else slot.hostname,
                end_on=end_on,
            )
        except HorovodError as error:
            say(str(error))
            ended = Ended(place, 1, time=time.monotonic())
        ends[place] = ended
        if ended.failed:
            say(f"{ended}; {slot.hostname} is left out from now on")
        return ended.code, time.time()

    with Rendezvous(network.address, on_stop=discovery.stop) as rendezvous:
        driver = ElasticDriver(rendezvous, discovery, least, most)
        try:
            shared = network.variables(rendezvous.start(create_rendezvous_handler(driver)), elastic=True)
            watched(lambda: driver.start(start, run), ending)
            last = [ends[place] for place in watched(driver.get_results, ending).worker_results]
        except LaunchEnded:
            raise
        except Exception as error:  # Horovod raises plain ones, with the reason in words
            raise HorovodError(f"elastic training did not start: {error}") from error
        finally:
            ranks.end()
            ranks.wait()
            stopping = threading.Thread(target=driver.stop, daemon=True)
            stopping.start()
            stopping.join(STOP_SECONDS)
    cause = first_cause(last)
    finished = [ended.name for ended in last if ended.code == 0]
    if finished:
        return Failure(f"{cause}; {', '.join(finished)} finished", cause.code) if cause else None
    cause = cause or first_cause(ends.values())
    if cause is None:
        return Failure("no rank finished, and too few hosts were left to go on", 1)
    return Failure(f"{cause}; too few hosts were left to go on", cause.code)


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
