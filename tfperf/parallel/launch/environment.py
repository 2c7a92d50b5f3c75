"""The environment variables of the ranks: threads, limits, and where to find the interpreter."""

import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from tfperf.cores import usable_cores
from tfperf.errors import HorovodError

__all__ = [
    "SENT",
    "STALL_LIMIT",
    "STALL_WARNING",
    "START_TIMEOUT",
    "START_VARIABLE",
    "rank_environment",
    "sent_environment",
    "threads_per_rank",
]

STALL_WARNING = 60
"""Seconds after which ranks that wait name those they wait for.

Horovod's own check finds nothing under Gloo (0.28.1), so that this and the limit hold for ranks that use
`tfperf.parallel.horovod`, which has a check of its own.
"""

STALL_LIMIT = 300
"""Seconds after which ranks that wait end. Horovod's own default is never."""

START_TIMEOUT = 60
"""Seconds that ranks wait for each other to start; Horovod's 30 are short for several imports of TensorFlow at once."""

START_VARIABLE = "HOROVOD_GLOO_TIMEOUT_SECONDS"
"""The variable that says so."""

SENT = (
    *("CUDA*", "CUDNN*", "FI_*", "GLOO_*", "GOMP_*", "GRPC_*", "HIP_*", "HOROVOD_*", "KERAS_*", "KMP_*", "MIOPEN_*"),
    *("MKL_*", "NCCL_*", "NUMEXPR_*", "NVIDIA_*", "OMP_*", "ONEDNN_*", "OPENBLAS_*", "PYTHON*", "RCCL_*", "ROCM_*"),
    *("TF_*", "TFPERF_*", "UCX_*", "XLA_*", "LC_*"),
    *("LANG", "LD_LIBRARY_PATH", "PATH", "TZ", "no_proxy"),
)
"""Variables that ranks on other machines get: what TensorFlow, Horovod and their libraries read. * ends a name."""

CREDENTIAL = re.compile("AUTH|CREDENTIAL|KEY|PASSPHRASE|PASSW|SECRET|TOKEN", re.IGNORECASE)
"""What is in the names of variables that are sent only to those who ask for them by name."""

OF_ONE_HOST = re.compile(".*CUDA_VISIBLE_DEVICES|TFPERF_CHILD|TFPERF_SHARED_GROUP")
"""Variables that mean something on one machine alone."""

_BETWEEN = "TF_NUM_INTEROP_THREADS"
_THREADS = ("TF_NUM_INTRAOP_THREADS", _BETWEEN, "OMP_NUM_THREADS")
_WARNING, _LIMIT = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"


def rank_environment(
    base: Mapping[str, str],
    *,
    default_threads: int,
    threads: int | None = None,
    stall_warning: int | None = None,
    stall_limit: int | None = None,
    start_timeout: int | None = None,
    least_between: int = 1,
    address: str,
) -> dict[str, str]:
    """The variables that all ranks share. What is None comes from the user's own variable, or else from a default.

    Args:
        base: the launcher's own.
        default_threads: threads of each rank where neither `threads` nor a variable says.
        threads: threads that TensorFlow computes an operation with, runs operations side by side with,
            and that NumPy's libraries use, each.
        stall_warning: seconds after which ranks that wait name those they wait for.
        stall_limit: seconds after which ranks that wait end; 0: never.
        start_timeout: seconds that ranks wait for each other at the start.
        least_between: threads that run operations side by side, at least so many whatever was asked: TensorFlow's
            workers wait for parameter servers in these, and with none left they wait for ever.
        address: where the rendezvous server listens.

    Raises:
        HorovodError: the limit is below the warning, which Horovod takes for "never"; or a variable is no number.
    """
    environment = dict(base)
    for name in _THREADS:
        _set(environment, name, threads, default_threads)
    environment[_BETWEEN] = str(max(_number(environment, _BETWEEN, "a number"), least_between))
    _set(environment, _WARNING, stall_warning, STALL_WARNING)
    _set(environment, _LIMIT, stall_limit, STALL_LIMIT)
    _set(environment, START_VARIABLE, start_timeout, START_TIMEOUT)
    warning, limit = (_number(environment, name, "seconds") for name in (_WARNING, _LIMIT))
    if 0 < limit < warning:
        raise HorovodError(
            f"expected a stall limit not below the warning, {warning} s, or 0 for none; received {limit} s"
        )
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), base.get("PATH", os.defpath)])
    environment["PYTHONUNBUFFERED"] = "1"  # what a rank prints is seen when it prints it
    # an elastic worker sends its service's address and key to the rendezvous server by HTTP
    no_proxy = base.get("no_proxy") or base.get("NO_PROXY")
    environment["no_proxy"] = f"{no_proxy},{address}" if no_proxy else address
    return environment


def sent_environment(environment: Mapping[str, str], exported: Collection[str] = ()) -> dict[str, str]:
    """The variables that a rank on another machine gets beside those that it has there.

    Args:
        environment: those that a rank on this machine has.
        exported: names of further ones, as the user wants it.
    """
    pattern = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in SENT), re.DOTALL)
    return {
        name: value
        for name, value in environment.items()
        if name in exported
        or (pattern.fullmatch(name) and not CREDENTIAL.search(name) and not OF_ONE_HOST.fullmatch(name))
    }


def threads_per_rank(ranks: int) -> int:
    """Threads of each rank when so many share this machine's usable cores; at least 1."""
    return max(1, usable_cores() // ranks)


def _set(environment: dict[str, str], name: str, asked: int | None, default: int) -> None:
    if asked is not None:
        environment[name] = str(asked)
    else:
        environment.setdefault(name, str(default))


def _number(environment: Mapping[str, str], name: str, what: str) -> int:
    try:
        return int(environment[name])
    except ValueError as error:
        raise HorovodError(f"expected {name} to be {what}, received {environment[name]!r}") from error
