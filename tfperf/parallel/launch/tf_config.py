"""TF_CONFIG: how the processes of `tf.distribute` find each other."""

import json
from collections.abc import Sequence

from tfperf.errors import HorovodError

__all__ = ["LAST_PORT", "servers_warning", "tf_configs"]

LAST_PORT = 65535


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
