"""A launch as a manifest for Kubernetes: an `MPIJob` of Kubeflow's mpi-operator, kubeflow.org/v2beta1."""

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from tfperf.errors import HorovodError

__all__ = ["HOSTFILE", "mpi_job", "to_yaml"]

HOSTFILE = "/etc/mpi/hostfile"
"""Where the operator writes the names of the workers, in the form that `--hostfile` reads."""

SSH_PORT = 22
LONGEST_NAME = 63  # of a pod, RFC 1035


def mpi_job(
    command: Sequence[str],
    *,
    image: str,
    ranks: int,
    slots: int = 1,
    threads: int | None = None,
    gpus: bool = False,
    interfaces: str = "eth0",
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """An `MPIJob` whose launcher pod runs `tfperf launch`, and whose worker pods are ssh servers.

    The operator gives all pods keys for ssh and writes a file with the workers' names; no MPI takes part. The launcher
    begins when each worker's server answers. A job that fails is not tried again.
    See https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/mpi/

    Args:
        command: what each rank runs; the job is named after its script.
        image: of all pods; has this command, tfperf, Horovod and an ssh server.
        ranks: how many.
        slots: ranks in each worker pod.
        threads: of each rank; a worker pod asks for as many cores as its ranks have threads. None: it asks for none.
        gpus: whether each rank has a GPU, of NVIDIA.
        interfaces: network interfaces of the pods, with commas; the usual plugins name theirs eth0.
        options: further ones of `tfperf launch`.

    Raises:
        HorovodError: the ranks do not fill the worker pods.
    """
    if ranks % slots:
        raise HorovodError(f"expected -np to be a multiple of --slots-per-worker {slots}. Received: {ranks}")
    workers = ranks // slots
    limits = {"cpu": threads and threads * slots, "nvidia.com/gpu": slots if gpus else None}
    limits = {name: number for name, number in limits.items() if number}
    launch = ["tfperf", "launch", "--hostfile", HOSTFILE, "-np", str(ranks), "--network-interfaces", interfaces]
    launch += [*(["--threads", str(threads)] if threads else []), *options, *command]
    # Kubernetes puts a variable of the pod in the place of $(NAME), and $ in the place of $$
    launcher = {"name": "launcher", "image": image, "command": [word.replace("$", "$$") for word in launch]}
    worker = {
        "name": "worker",
        "image": image,
        "command": ["/usr/sbin/sshd", "-D", "-e"],
        "readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1},
        **({"resources": {"limits": limits}} if limits else {}),
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": _name(command, workers)},
        "spec": {
            "slotsPerWorker": slots,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
            "mpiReplicaSpecs": {"Launcher": _replicas(1, launcher), "Worker": _replicas(workers, worker)},
        },
    }


def to_yaml(manifest: dict[str, Any]) -> str:
    """A manifest as YAML, its entries in their order.

    Raises:
        HorovodError: PyYAML is not installed, which Horovod brings.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise HorovodError("PyYAML is not installed, which writes the manifest; run `pip install pyyaml`") from error
    text: str = yaml.safe_dump(manifest, sort_keys=False, width=120)
    return text


def _replicas(number: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": number, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}


def _name(command: Sequence[str], workers: int) -> str:
    """A name for the job, so that the last worker's is a DNS label, as the operator demands: `train` for `train.py`."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    name = re.sub(r"[^a-z0-9]+", "-", PurePath(script).stem.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}".rstrip("-")
    return name[: LONGEST_NAME - len(f"-worker-{workers - 1}")].rstrip("-")
