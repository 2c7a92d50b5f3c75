"""`tfperf launch`."""

import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tfperf.importing import QUIET_LOG

__all__ = ["launch"]


def launch(
    command: Annotated[list[str], typer.Argument(help="What each rank runs, with its own flags.")],
    ranks: Annotated[
        int | None, typer.Option("-np", "--num-proc", min=1, help="How many ranks. Left out: as the hosts say.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option("-H", "--hosts", help="The hosts: name:slots,name:slots. Left out: this machine.")
    ] = None,
    hostfile: Annotated[
        Path | None, typer.Option(help="A file with the hosts, a line `name slots=N` for each.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="The threads of each rank. Left out: the cores are shared between the ranks."),
    ] = None,
    stall_warning: Annotated[
        int | None, typer.Option(min=1, help="Name the ranks that others wait for after so many seconds. [60]")
    ] = None,
    stall_limit: Annotated[
        int | None, typer.Option(min=0, help="End ranks that wait after so many seconds; 0: never. [300]")
    ] = None,
    start_timeout: Annotated[
        int | None, typer.Option(min=1, help="How many seconds ranks wait for each other at the start. [60]")
    ] = None,
    min_np: Annotated[
        int | None, typer.Option("--min-np", min=1, help="Elastic: continue with as few ranks as this.")
    ] = None,
    max_np: Annotated[int | None, typer.Option("--max-np", min=1, help="Elastic: start no more ranks.")] = None,
    discovery_script: Annotated[
        str | None,
        typer.Option("--host-discovery-script", help="Elastic: a program that prints a line name:slots for each host."),
    ] = None,
    tf_config: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65535,
            help="Set TF_CONFIG for tf.distribute: the server of rank r listens on PORT + r, on all interfaces.",
        ),
    ] = None,
    parameter_servers: Annotated[
        int,
        typer.Option(min=0, help="With --tf-config: the last N ranks are parameter servers, rank 0 is the chief."),
    ] = 0,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="Exchange through MPI's shared memory: all ranks on this machine.")
    ] = False,
    interfaces: Annotated[
        str | None,
        typer.Option(
            "--network-interfaces", help="Network interfaces, with commas. Left out: loopback where possible."
        ),
    ] = None,
    output_folder: Annotated[
        Path | None, typer.Option("--output-filename", help="Keep a copy of what each rank prints in this folder.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            "-x",
            metavar="NAME",
            help="Send this environment variable to other hosts, too: those with a credential in their name, and "
            "those that neither TensorFlow nor Horovod reads, stay here. May be repeated.",
        ),
    ] = None,
    manifest: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Start nothing; print a manifest: kubernetes, an MPIJob of Kubeflow."),
    ] = None,
    image: Annotated[str | None, typer.Option(help="With --manifest: the image of all pods.")] = None,
    slots_per_worker: Annotated[
        int | None, typer.Option(min=1, help="With --manifest: ranks in each worker pod. [1]")
    ] = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="With --manifest: a GPU of NVIDIA for each rank.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what is started, and hide nothing.")] = False,
) -> None:
    """Run a Horovod script in several ranks.

    `tfperf launch -np 4 python train.py --epochs 3` does what `horovodrun` does, and more: ranks on this machine
    listen on loopback only and share its cores. If a rank fails, waits too long for the others, or this command
    ends, all ranks end, with every process that they started.
    """
    if manifest is not None:
        unfit = {
            "--hosts": hosts,
            "--hostfile": hostfile,
            "--host-discovery-script": discovery_script,
            "--min-np": min_np,
            "--max-np": max_np,
            "--output-filename": output_folder,
            "--mpi": mpi or None,
        }
        options = {
            "--stall-warning": stall_warning,
            "--stall-limit": stall_limit,
            "--start-timeout": start_timeout,
            "--tf-config": tf_config,
            "--parameter-servers": parameter_servers or None,
        }
        _check_manifest(manifest, unfit)
        _print_mpi_job(
            command,
            image=image,
            ranks=ranks,
            slots=slots_per_worker or 1,
            threads=threads,
            gpus=gpus,
            interfaces=interfaces or "eth0",
            options=[
                *(word for name, value in options.items() if value is not None for word in (name, str(value))),
                *(word for name in export or () for word in ("--export", name)),
                *(["--verbose"] if verbose else []),
            ],
        )
        return
    if image is not None or gpus or slots_per_worker is not None:
        raise typer.BadParameter("expected --image, --slots-per-worker and --gpus with --manifest kubernetes")
    from tfperf.parallel.launch import Ending, Job, parse_hosts, read_hostfile
    from tfperf.parallel.launch import launch as run

    given = [name for name in (hosts, hostfile, discovery_script) if name is not None]
    if len(given) > 1:
        raise typer.BadParameter("expected one of --hosts, --hostfile and --host-discovery-script")
    if ranks is None and min_np is None and not given:
        raise typer.BadParameter("expected the number of ranks: -np N")
    job = Job(
        command=command,
        ranks=ranks,
        hosts=parse_hosts(hosts) if hosts is not None else read_hostfile(hostfile) if hostfile is not None else (),
        discovery_script=discovery_script,
        least=min_np,
        most=max_np,
        threads=threads,
        stall_warning=stall_warning,
        stall_limit=stall_limit,
        start_timeout=start_timeout,
        tf_config_port=tf_config,
        parameter_servers=parameter_servers,
        mpi=mpi,
        interfaces=interfaces.split(",") if interfaces is not None else (),
        output_folder=output_folder,
        exported=export or (),
        verbose=verbose,
        environment=dict(os.environ) if verbose else QUIET_LOG | os.environ,
    )
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL)  # Horovod's elastic driver logs
    ending = Ending()
    with ending.on_signals():
        try:
            failure = run(job, ending)
        except BrokenPipeError:
            _leave(128 + signal.SIGPIPE)
    if failure:
        if not ending.asked:
            print(f"tfperf launch: {failure.words}", file=sys.stderr, flush=True)
        _leave(failure.code)


def _leave(code: int) -> NoReturn:
    """Leave without waiting for threads: they may wait for a reader of the output, or for another machine."""
    os._exit(code)


def _check_manifest(kind: str, unfit: Mapping[str, object]) -> None:
    if kind != "kubernetes":
        raise typer.BadParameter(f"expected --manifest kubernetes. Received: {kind}")
    for name, value in unfit.items():
        if value is not None:
            raise typer.BadParameter(
                f"expected --manifest without {name}: the ranks run in pods that the operator starts"
            )


def _print_mpi_job(command: list[str], image: str | None, ranks: int | None, **options: Any) -> None:
    from tfperf.parallel.launch.manifest import mpi_job, to_yaml

    if image is None:
        raise typer.BadParameter("expected the image of the pods with --manifest: --image IMAGE")
    if ranks is None:
        raise typer.BadParameter("expected the number of ranks: -np N")
    print(to_yaml(mpi_job(command, image=image, ranks=ranks, **options)), end="")
