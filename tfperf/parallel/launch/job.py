"""What to launch, and launching it."""

import math
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.installed import find_horovod
from tfperf.parallel.launch.elastic import Discovery, run_elastic, with_local_services
from tfperf.parallel.launch.ending import Ending, watched
from tfperf.parallel.launch.environment import (
    START_TIMEOUT,
    START_VARIABLE,
    rank_environment,
    servers_warning,
    threads_per_rank,
)
from tfperf.parallel.launch.hosts import DiscoveryScript, FixedHosts, RankHost, is_this_machine
from tfperf.parallel.launch.network import RankNetwork, exposure
from tfperf.parallel.launch.output import say
from tfperf.parallel.launch.ranks import ELSEWHERE, GRACE, OUTPUT_GRACE, Failure, Ranks
from tfperf.parallel.launch.ssh import check_host
from tfperf.parallel.launch.static import run_static
from tfperf.parallel.private_network import is_private
from tfperf.processes.resting import IDLE_LIMIT
from tfperf.system import usable_cores

__all__ = ["Job", "launch"]

LIMIT = GRACE + ELSEWHERE + OUTPUT_GRACE
"""Seconds in which a launch ends what it has started; what does not end then ends with this process."""


@dataclass(frozen=True)
class Job:
    """A command, and how to run several ranks of it.

    Attributes:
        command: what each rank runs.
        ranks: how many; None: one for each slot of the hosts, or for an elastic job `least`. An elastic job starts
            when there are so many.
        hosts: where; empty: on this machine.
        discovery_script: prints the hosts there are now; makes the job elastic.
        least: an elastic job waits for more ranks when it has fewer; makes the job elastic.
        most: an elastic job starts no more.
        threads: of each rank; None: what TF_NUM_INTRAOP_THREADS and its like say, or else this machine's cores
            shared between its ranks.
        stall_warning, stall_limit, start_timeout: seconds, see `rank_environment`.
        tf_config_port: ranks get TF_CONFIG, for `tf.distribute`; the server of rank r listens on this port + r, on all
            interfaces.
        parameter_servers: so many of the ranks are parameter servers, see `tf_configs`.
        mpi: ranks exchange through MPI's shared memory and not through Gloo's sockets; all are on this machine.
        interfaces: network interfaces to use; empty: loopback, or with hosts elsewhere those that all share.
        output_folder: where to copy what ranks print, too.
        exported: names of variables that ranks on other machines get beside those they need, see `sent_environment`.
        verbose: tell what is started, and hide nothing.
        environment: the variables that ranks get.
    """

    command: Sequence[str]
    ranks: int | None = None
    hosts: Sequence[RankHost] = ()
    discovery_script: str | None = None
    least: int | None = None
    most: int | None = None
    threads: int | None = None
    stall_warning: int | None = None
    stall_limit: int | None = None
    start_timeout: int | None = None
    tf_config_port: int | None = None
    parameter_servers: int = 0
    mpi: bool = False
    interfaces: Sequence[str] = ()
    output_folder: Path | None = None
    exported: Sequence[str] = ()
    verbose: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def elastic(self) -> bool:
        """Whether ranks may come and go."""
        return self.discovery_script is not None or self.least is not None


def launch(job: Job, ending: Ending | None = None) -> Failure | None:
    """Run the ranks of a job to their end, on loopback alone when all are on this machine.

    They end with this process, however it ends, and when one of them fails.

    Args:
        job: what to run.
        ending: when this is asked for, by a signal handler for instance, all ends within 15 s.

    Returns:
        None when all went well; otherwise the first rank that failed, in words, and its exit code.

    Raises:
        HorovodError: Horovod is not installed, or the job cannot be started.
        BrokenPipeError: nobody reads what the ranks print any more.
    """
    asked = ending or Ending()
    try:
        failure = watched(lambda: _launch(job, asked), asked, LIMIT)
    except Exception:
        if not asked.asked:
            raise
    if asked.number is not None:
        return Failure(f"ended by {signal.Signals(asked.number).name}", 128 + asked.number)
    return failure


def _launch(job: Job, ending: Ending) -> Failure | None:
    _require_horovod()
    hosts = _hosts(job, ending)
    number = job.ranks or job.least or sum(host.slots for host in hosts)
    _check_numbers(job, number, hosts)
    elsewhere = [host for host in hosts if not is_this_machine(host.name)]
    if job.mpi:
        _check_mpi(job, elsewhere)
    _check_exported(job)
    network = _network(job, hosts, elsewhere, ending)
    environment = rank_environment(
        job.environment,
        default_threads=threads_per_rank(_most_on_one_machine(job, number, hosts, elsewhere)),
        threads=job.threads,
        stall_warning=job.stall_warning,
        stall_limit=job.stall_limit,
        start_timeout=job.start_timeout,
        least_between=number if job.parameter_servers else 1,
        address=network.address,
    )
    if not elsewhere and shutil.which(job.command[0], path=environment["PATH"]) is None:
        raise HorovodError(f"expected a command that can be run, {job.command[0]!r} is not found or not executable")
    if job.tf_config_port is not None and (elsewhere or not is_private()):
        say(servers_warning(job.tf_config_port, number))
    if job.verbose:
        say(
            f"{number} ranks on {', '.join(f'{host.name}:{host.slots}' for host in hosts)}, each with "
            f"{environment['TF_NUM_INTRAOP_THREADS']} of this machine's {usable_cores()} cores, "
            f"over {', '.join(network.interfaces)} ({network.address})"
        )
    ranks = Ranks(
        with_local_services(job.command, environment["PATH"]) if job.elastic else job.command,
        environment,
        ending=ending,
        exported=job.exported,
        output_folder=job.output_folder,
        hide_noise=not job.verbose,
    )
    ending.look()
    if job.elastic:
        discovery = _discovery(job, hosts, ending, only_this_machine=network.is_loopback)
        failure = run_elastic(ranks, discovery, network, ending, start=number, least=job.least or number, most=job.most)
    else:
        failure = run_static(
            ranks,
            hosts,
            network,
            number=number,
            tf_config_port=job.tf_config_port,
            parameter_servers=job.parameter_servers,
            mpi=job.mpi,
            start_timeout=float(environment[START_VARIABLE]),
            idle_limit=IDLE_LIMIT if job.start_timeout is None and START_VARIABLE not in job.environment else math.inf,
        )
    if ranks.nobody_reads:
        raise BrokenPipeError
    return failure


def _require_horovod() -> None:
    try:
        import horovod.runner.gloo_run  # noqa: F401
    except ImportError as error:
        missing = (error.name or "").partition(".")[0] == "horovod"
        what = "Horovod is not installed" if missing else f"Horovod cannot be loaded ({error})"
        raise HorovodError(f"{what}; run `tfperf horovod install`") from error


def _check_mpi(job: Job, elsewhere: Sequence[RankHost]) -> None:
    if job.elastic or elsewhere:
        raise HorovodError(
            "expected --mpi with a fixed number of ranks on this machine; leave it out, as Gloo does both"
        )
    here = find_horovod()
    mpi = (here and here.mpi) or "no MPI"
    if not mpi.startswith("MPICH"):
        raise HorovodError(
            f"expected a Horovod with MPICH for --mpi, it has {mpi}; pip install 'tfperf[mpi]' and then "
            "`tfperf horovod install --mpi`"
        )


def _check_exported(job: Job) -> None:
    for name in job.exported:
        if name not in job.environment:
            raise HorovodError(
                f"expected --export with the name of an environment variable that is set. Received: {name}"
            )


def _hosts(job: Job, ending: Ending) -> tuple[RankHost, ...]:
    """The hosts there are at the start."""
    if job.discovery_script is not None:
        return DiscoveryScript(job.discovery_script, ending).hosts()
    if job.least is not None and len(job.hosts) < 2:
        raise HorovodError("expected --host-discovery-script, or at least two --hosts, for elastic training")
    return tuple(job.hosts) or (RankHost("localhost", job.ranks or 1),)


def _check_numbers(job: Job, number: int, hosts: Sequence[RankHost]) -> None:
    slots = sum(host.slots for host in hosts)
    if number < 1:
        raise HorovodError("expected -np or --min-np, as the host discovery script names no host yet")
    least, most = job.least or number, job.most or max(number, slots)
    if job.most is not None and not job.elastic:
        raise HorovodError("expected --max-np with --min-np or --host-discovery-script, for elastic training")
    if not least <= number <= most:
        raise HorovodError(f"expected --min-np <= -np <= --max-np, received {least}, {number} and {most}")
    if job.discovery_script is None and slots < number:
        raise HorovodError(f"expected at most {slots} ranks, as the hosts have no more slots; received {number}")
    if job.tf_config_port is not None and job.elastic:
        raise HorovodError("expected --tf-config without --min-np and --host-discovery-script: its hosts are fixed")
    if job.parameter_servers and job.tf_config_port is None:
        raise HorovodError("expected --parameter-servers with --tf-config PORT, which says where they listen")
    if slots < number:
        say(f"waiting for hosts: there are {slots} slots for {number} ranks")


def _network(job: Job, hosts: Sequence[RankHost], elsewhere: Sequence[RankHost], ending: Ending) -> RankNetwork:
    """Loopback, unless a host or an interface says otherwise; then the user is told what that exposes."""
    wanted = RankNetwork.of(job.interfaces) if job.interfaces else None
    if not elsewhere and (wanted is None or wanted.is_loopback):
        return RankNetwork.loopback()
    say(exposure(hosts, job.interfaces))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: check_host(host.name, job.environment, ending), elsewhere))
    return wanted or RankNetwork.common(hosts, job.start_timeout or START_TIMEOUT, ending)


def _most_on_one_machine(job: Job, number: int, hosts: Sequence[RankHost], elsewhere: Sequence[RankHost]) -> int:
    """How many ranks the busiest machine may get; several hosts may be names of this one."""
    here = sum(host.slots for host in hosts if host not in elsewhere)
    busiest = max([here, *(host.slots for host in elsewhere)])
    limit = number if not job.elastic else job.most or busiest
    return max(1, min(busiest, limit))


def _discovery(job: Job, hosts: Sequence[RankHost], ending: Ending, *, only_this_machine: bool) -> Discovery:
    if job.discovery_script is not None:
        return DiscoveryScript(job.discovery_script, ending, only_this_machine=only_this_machine)
    return FixedHosts(tuple(hosts))
