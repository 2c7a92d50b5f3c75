"""The environment variables of the ranks: threads, limits, where to find the interpreter, and TF_CONFIG."""

import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tfperf.errors import HorovodError
from tfperf.system import usable_cores

__all__ = [
    "LAST_PORT",
    "SENT",
    "STALL_LIMIT",
    "STALL_LIMIT_VARIABLE",
    "STALL_WARNING",
    "STALL_WARNING_VARIABLE",
    "START_TIMEOUT",
    "START_VARIABLE",
    "rank_environment",
    "sent_environment",
    "servers_warning",
    "tf_configs",
    "threads_per_rank",
]

STALL_WARNING = 60
"""Seconds after which ranks that wait name those they wait for.

Horovod's own check finds nothing under Gloo (0.28.1), so that this and the limit hold for ranks that use
`tfperf.parallel.horovod`, which has a check of its own.
"""

STALL_LIMIT = 300
"""Seconds after which ranks that wait end. Horovod's own default is never."""

STALL_WARNING_VARIABLE, STALL_LIMIT_VARIABLE = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
"""The variables that say so."""

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

LAST_PORT = 65535

_BETWEEN = "TF_NUM_INTEROP_THREADS"
_THREADS = ("TF_NUM_INTRAOP_THREADS", _BETWEEN, "OMP_NUM_THREADS")


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
    environment[_BETWEEN] = str(max(_number(environment, _BETWEEN, "a whole number"), least_between))
    _set(environment, STALL_WARNING_VARIABLE, stall_warning, STALL_WARNING)
    _set(environment, STALL_LIMIT_VARIABLE, stall_limit, STALL_LIMIT)
    _set(environment, START_VARIABLE, start_timeout, START_TIMEOUT)
    seconds = (STALL_WARNING_VARIABLE, STALL_LIMIT_VARIABLE, START_VARIABLE)
    warning, limit, _ = (_number(environment, name, "whole seconds") for name in seconds)
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


def tf_configs(hosts: Sequence[str], port: int, *, parameter_servers: int = 0) -> list[str]:
    """The value of TF_CONFIG for each rank.

    Without parameter servers all ranks are workers, as `MultiWorkerMirroredStrategy` has them. With parameter servers
    rank 0 is the chief, the last ranks are the servers, and those between are the workers, as
    `ParameterServerStrategy` has them.
    See https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable

    Args:
        hosts: the host of each rank, by a name or address that all of them know.
        port: where the server of rank 0 listens; that of rank r listens on port + r.
        parameter_servers: how many of the ranks.

    Raises:
        HorovodError: the ports go beyond the last one, or no worker is left.
    """
    number = len(hosts)
    if port + number - 1 > LAST_PORT:
        raise HorovodError(f"expected a port of at most {LAST_PORT + 1 - number} for {number} ranks. Received: {port}")
    workers = number - 1 - parameter_servers
    if parameter_servers and workers < 1:
        raise HorovodError(
            f"expected at least {parameter_servers + 2} ranks: a chief, a worker and the parameter servers. "
            f"Received: {number}"
        )
    roles = {"worker": number} if not parameter_servers else {"chief": 1, "worker": workers, "ps": parameter_servers}
    addresses = [f"{host}:{port + rank}" for rank, host in enumerate(hosts)]
    tasks = [{"type": role, "index": index} for role, many in roles.items() for index in range(many)]
    cluster: dict[str, list[str]] = {role: [] for role in roles}
    for task, address in zip(tasks, addresses, strict=True):
        cluster[str(task["type"])].append(address)
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def servers_warning(port: int, number: int) -> str:
    """What the servers of `tf.distribute` let others do, and what to do about it, in one line."""
    return (
        f"warning: TensorFlow's servers listen on all interfaces, on ports {port} to {port + number - 1}, unencrypted, "
        "and run what anyone sends them. Run this only in a network that you trust, behind a firewall."
    )
