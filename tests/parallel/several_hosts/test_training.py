"""Training on two hosts: Horovod, MultiWorkerMirroredStrategy and parameter servers, each equal to one process."""

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("horovod", reason="needs Horovod")
pytestmark = pytest.mark.timeout(300)

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "mnist_hvd.py"
DEADLINE = 120
PORT = 2222

ONE_THREAD = {"CUDA_VISIBLE_DEVICES": "-1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@pytest.fixture
def trained(two_hosts, tmp_path):
    """A function that launches a command from node1: its output, and the bytes that node1 sent over the link."""

    def trained(*arguments):
        before = sent(two_hosts.node1)
        command = [sys.executable, "-m", "tfperf", "launch", "--network-interfaces", "eth0", *arguments]
        code, output = two_hosts.node1.run(*command, folder=tmp_path, deadline=DEADLINE, **ONE_THREAD)
        assert code == 0, output
        return output, sent(two_hosts.node1) - before

    return trained


def sent(host):
    """Bytes that have left a host through the filter that limits the rate of its link."""
    _, output = host.run("tc", "-statistics", "-json", "qdisc", "show", "dev", "eth0")
    (limit,) = json.loads(output)
    assert limit["kind"] == "tbf"
    return limit["bytes"]


def test_horovod_gives_the_weights_of_one_host(trained):
    """Two ranks on one host, and one rank on each of two."""
    command = [sys.executable, RECIPE, "--quick", "--data=digits", "--batch=32", "--epochs=1", "--time-limit=0.1"]
    (near, few), (far, many) = (trained("-H", hosts, *command) for hosts in ("node1:2", "node1:1,node2:1"))
    assert few < 10_000 < many
    digests = re.findall(r"\b[0-9a-f]{16}\b", near)
    assert len(digests) == 2
    assert re.findall(r"\b[0-9a-f]{16}\b", far) == digests


COMMON = """
import os
import numpy as np
import tensorflow as tf

STEPS, BATCH = 20, 32
random = np.random.default_rng(0)
images = random.normal(size=(STEPS, BATCH, 64)).astype("float32")
labels = random.integers(10, size=(STEPS, BATCH))
starts = [random.normal(size=shape).astype("float32") * 0.1 for shape in ((64, 128), (128,), (128, 10), (10,))]

def gradients(weights, images, labels):
    hidden, bias, last, last_bias = weights
    with tf.GradientTape() as tape:
        logits = tf.nn.relu(images @ hidden + bias) @ last + last_bias
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    return tape.gradient(loss, weights)

def step(weights, images, labels):
    for weight, gradient in zip(weights, gradients(weights, images, labels)):
        weight.assign_sub(0.1 * gradient)

def error(weights):
    alone = [tf.Variable(start) for start in starts]
    for batch in zip(images, labels):
        step(alone, *batch)
    assert np.abs(alone[0] - starts[0]).max() > 0.01  # it did train
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(alone, weights))
"""

MULTI_WORKER = """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = strategy.cluster_resolver.task_id
with strategy.scope():
    mean = tf.VariableAggregation.MEAN  # of what the workers subtract
    weights = [tf.Variable(start, aggregation=mean) for start in starts]

@tf.function
def one_step(images, labels):
    strategy.run(step, (weights, images, labels))

for batch in zip(images, labels):
    one_step(*(array[index :: strategy.num_replicas_in_sync] for array in batch))
print("worker", index, "of", strategy.num_replicas_in_sync, error([weight.numpy() for weight in weights]))
"""


def test_multi_worker_mirrored_strategy_gives_the_weights_of_one_process(trained, tmp_path):
    (tmp_path / "train.py").write_text(COMMON + MULTI_WORKER)
    output, many = trained("--tf-config", str(PORT), "-H", "node1:1,node2:1", "python", "train.py")
    errors = re.findall(r"^\[(\d)\] worker \1 of 2 (\S+)$", output, re.MULTILINE)
    assert sorted(rank for rank, _ in errors) == ["0", "1"], output
    assert all(float(error) < 1e-5 for _, error in errors)
    assert many > 20 * 4 * 64 * 128 / 2  # half of the largest tensor, each step
    assert f"warning: TensorFlow's servers listen on all interfaces, on ports {PORT} to {PORT + 1}" in output


PARAMETER_SERVER = """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id).join()  # for ever

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = [tf.Variable(start) for start in starts]

@tf.function
def one_step(images, labels):
    step(weights, images, labels)

for batch in zip(images, labels):
    coordinator.schedule(one_step, batch)
    coordinator.join()
print(weights[0].device, error([weight.numpy() for weight in weights]))
"""


def test_a_parameter_server_gives_the_weights_of_one_process(trained, tmp_path):
    """The chief and a worker on one host, the parameter server on the other; it is ended when the chief is done."""
    (tmp_path / "train.py").write_text(COMMON + PARAMETER_SERVER)
    options = ["--tf-config", str(PORT), "--parameter-servers", "1", "-H", "node1:2,node2:1"]
    output, many = trained(*options, "python", "train.py")
    (error,) = re.findall(r"^\[0\] /job:ps/replica:0/task:0/device:CPU:0 (\S+)$", output, re.MULTILINE)
    assert float(error) < 1e-5
    assert many > 20 * 4 * 64 * 128
