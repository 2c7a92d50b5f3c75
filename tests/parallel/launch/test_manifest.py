"""An MPIJob: valid by the operator's own rules, and a launcher that starts what was asked for."""

import re
import sys
from typing import Annotated, Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

pytest.importorskip("yaml", reason="needs PyYAML, which Horovod brings")

import yaml

from tfperf.errors import HorovodError
from tfperf.parallel.launch import parse_hosts, read_hostfile
from tfperf.parallel.launch.manifest import HOSTFILE, mpi_job, to_yaml

COMMAND = ["python", "train.py", "--epochs", "3"]


class Strict(BaseModel):
    """An object in which a misspelled field is an error; the API server would drop it without a word."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TcpSocket(Strict):
    port: Annotated[int, Field(ge=1, le=65535)]


class Probe(Strict):
    tcpSocket: TcpSocket  # noqa: N815 - the field's name
    periodSeconds: Annotated[int, Field(ge=1)]  # noqa: N815


class Resources(Strict):
    limits: dict[Literal["cpu", "nvidia.com/gpu"], Annotated[int, Field(ge=1)]]


class Container(Strict):
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    image: Annotated[str, Field(min_length=1)]
    command: list[str]
    readinessProbe: Probe | None = None  # noqa: N815
    resources: Resources | None = None


class PodSpec(Strict):
    containers: Annotated[list[Container], Field(min_length=1)]


class Template(Strict):
    spec: PodSpec


class Replicas(Strict):
    replicas: Annotated[int, Field(ge=1)]
    restartPolicy: Literal["Never", "OnFailure"]  # noqa: N815
    template: Template


class ReplicaSpecs(Strict):
    Launcher: Replicas
    Worker: Replicas


class RunPolicy(Strict):
    cleanPodPolicy: Literal["None", "Running", "All"]  # noqa: N815
    backoffLimit: Annotated[int, Field(ge=0)]  # noqa: N815


class Spec(Strict):
    slotsPerWorker: Annotated[int, Field(ge=0)]  # noqa: N815
    launcherCreationPolicy: Literal["AtStartup", "WaitForWorkersReady"]  # noqa: N815
    runPolicy: RunPolicy  # noqa: N815
    mpiReplicaSpecs: ReplicaSpecs  # noqa: N815


class Metadata(Strict):
    name: str


class MPIJob(Strict):
    """The fields that are used here, as manifests/base/kubeflow.org_mpijobs.yaml of mpi-operator has them."""

    apiVersion: Literal["kubeflow.org/v2beta1"]  # noqa: N815
    kind: Literal["MPIJob"]
    metadata: Metadata
    spec: Spec


def made(command=COMMAND, *, ranks=8, **options):
    """A job by way of its YAML, checked as the operator checks it, pkg/apis/kubeflow/validation/validation.go."""
    job = MPIJob.model_validate(
        yaml.safe_load(to_yaml(mpi_job(command, image="example/train:1", ranks=ranks, **options)))
    )
    workers = job.spec.mpiReplicaSpecs.Worker.replicas
    last = f"{job.metadata.name}-worker-{workers - 1}"
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", last), last
    assert job.spec.mpiReplicaSpecs.Launcher.replicas == 1
    assert workers * job.spec.slotsPerWorker == ranks
    return job


def containers(job):
    return [replicas.template.spec.containers[0] for _, replicas in job.spec.mpiReplicaSpecs]


def test_the_launcher_runs_tfperf_launch_on_the_workers_and_they_are_ssh_servers():
    launcher, worker = containers(made())
    assert " ".join(launcher.command) == (
        f"tfperf launch --hostfile {HOSTFILE} -np 8 --network-interfaces eth0 python train.py --epochs 3"
    )
    assert worker.command[0] == "/usr/sbin/sshd"
    assert worker.readinessProbe.tcpSocket.port == 22
    assert {launcher.image, worker.image} == {"example/train:1"}
    assert (launcher.resources, worker.resources) == (None, None)


def test_ranks_share_pods_which_ask_for_their_cores_and_gpus():
    job = made(slots=4, threads=3, gpus=True, interfaces="net1", options=["--stall-limit", "9"])
    launcher, worker = containers(job)
    assert job.spec.mpiReplicaSpecs.Worker.replicas == 2
    assert worker.resources.limits == {"cpu": 12, "nvidia.com/gpu": 4}
    assert launcher.resources is None
    assert " ".join(launcher.command[6:]) == (
        "--network-interfaces net1 --threads 3 --stall-limit 9 python train.py --epochs 3"
    )


def test_the_operators_list_of_hosts_can_be_read(tmp_path):
    """It is written by newConfigMap of pkg/controller/mpi_job_controller.go."""
    names = [f"train-worker-{number}.train.default.svc" for number in range(2)]
    (tmp_path / "hostfile").write_text("".join(f"{name} slots=4\n" for name in names))
    assert read_hostfile(tmp_path / "hostfile") == parse_hosts(",".join(f"{name}:4" for name in names))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are busy
@given(
    st.lists(st.text(st.sampled_from("$(A) ") | st.characters(), min_size=1), min_size=1, max_size=3),
    st.integers(1, 5000),
)
@example(["echo", "$(A) $$(A) $$$ $A"], 1)
def test_any_command_reaches_the_ranks_as_it_is(command, ranks):
    launcher, _ = containers(made(command, ranks=ranks))
    assert [expanded(word) for word in launcher.command[-len(command) :]] == command


def expanded(word):
    """What Kubernetes makes of a word, in a pod with one variable: A is "b"."""
    return re.sub(r"\$(\$|\(A\))", lambda match: "$" if match[1] == "$" else "b", word)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "My_Train.py"], "my-train"),
        (["python", "-m", "train"], "python"),
        (["/bin/echo"], "echo"),
        (["python", "3_d.py"], "job-3-d"),
        (["python", "___.py"], "job"),
    ],
)
def test_the_job_is_named_after_its_script(command, name):
    assert made(command).metadata.name == name


def test_ranks_that_do_not_fill_the_pods_are_refused():
    with pytest.raises(HorovodError, match=r"expected -np to be a multiple of --slots-per-worker 3\. Received: 8"):
        mpi_job(COMMAND, image="i", ranks=8, slots=3)


def test_without_pyyaml_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(HorovodError, match="pip install pyyaml"):
        to_yaml({})
