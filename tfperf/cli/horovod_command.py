"""`tfperf horovod install` and `tfperf horovod check`."""

import signal
import sys
from typing import Annotated, NoReturn

import typer

__all__ = ["horovod"]

FAILED = 1
"""Exit code when Horovod is there and does not work."""

CONTROLLERS = ("gloo", "mpi")
"""What ranks can find each other and agree with, and what reduces tensors of the CPU."""

horovod = typer.Typer(help="Build Horovod for this TensorFlow, install it, and check it.", rich_markup_mode=None)


@horovod.callback(invoke_without_command=True)
def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@horovod.command()
def install(
    nccl: Annotated[bool, typer.Option("--nccl", help="Reduce on NVIDIA GPUs with NCCL; needs nvcc and NCCL.")] = False,
    mpi: Annotated[bool, typer.Option("--mpi", help="Build with MPI beside Gloo; needs tfperf[mpi].")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build even if one is installed or in the cache.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many files to compile at once; default: one a core.")
    ] = None,
) -> None:
    """Build Horovod 0.28.1 for this TensorFlow, and install it.

    Takes about 2 minutes on 2 cores, from the cache a few seconds. CXX, CXXFLAGS, LDFLAGS and Horovod's own
    HOROVOD_... build variables are heeded; PIP_CONSTRAINT too.
    """
    from tfperf.caching import cache_folder
    from tfperf.parallel.horovod_build import Wanted
    from tfperf.parallel.horovod_build import install as install_horovod

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    installed, source = install_horovod(
        cache_folder("horovod"),
        Wanted(mpi=mpi, nccl=nccl),
        rebuild=rebuild,
        jobs=jobs,
        terminal=sys.stdout.isatty(),
        say=lambda line: print(line, flush=True),
    )
    print(f"{installed}: {source.value}; `tfperf horovod check` proves that it works")


@horovod.command()
def check() -> None:
    """Check the installed Horovod: two ranks sum a tensor."""
    from tfperf.errors import HorovodError
    from tfperf.parallel.horovod_build import allreduce_on_two_ranks, find_horovod

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    build = find_horovod()
    if build is None:
        raise HorovodError("Horovod is not installed; run `tfperf horovod install`")
    print(f"Horovod {build.version} for TensorFlow {build.tensorflow}")
    operations = [name for name in build.built_with if name not in CONTROLLERS]
    print(f"  controllers  {', '.join(name for name in build.built_with if name in CONTROLLERS) or 'none'}")
    print(f"  for GPUs     {', '.join(operations) or 'nothing'}{f'; NCCL {build.nccl}' if build.nccl else ''}")
    print(f"  built from   {build.key or 'unknown: not by `tfperf horovod install`'}", flush=True)
    if build.problem is not None:
        _fail(f"Horovod {build.version} does not work here: {build.problem}; run `tfperf horovod install`")
    for mpi in [False, True] if (build.mpi or "").startswith("MPICH") else [False]:
        try:
            answer = allreduce_on_two_ranks(mpi=mpi)
        except HorovodError as error:
            _fail(f"over MPI: {error}" if mpi else str(error))
        times = ", ".join(f"rank {rank} {seconds * 1e3:.1f} ms" for rank, seconds in enumerate(answer.seconds))
        over = " over MPI" if mpi else ""
        print(f"  allreduce    1 + 2 = {answer.total:g} on 2 ranks{over}, 4 MB of float32: {times}", flush=True)


def _fail(message: str) -> NoReturn:
    print(f"tfperf: {message}", file=sys.stderr)
    raise typer.Exit(FAILED)


def _exit_on_signal(number: int, _: object) -> NoReturn:
    """End by an exception, so that what was started is ended first."""
    sys.exit(128 + number)
