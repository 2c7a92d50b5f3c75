"""Links of a local cluster's parameter servers: as slow as asked for, with bytes counted on each; what is missing."""

import sys
import time

import cloudpickle
import numpy as np
import pytest

from tfperf.errors import TfperfError
from tfperf.parallel import LocalCluster, can_limit_links, in_private_network, limited_links
from tfperf.processes import Finished

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the processes cannot import it


@pytest.mark.skipif(not can_limit_links(), reason="needs root and iproute2")
def test_each_parameter_server_has_a_link_of_its_own():
    def move(size, bandwidth):
        import tensorflow as tf

        with LocalCluster(workers=1, parameter_servers=2, bandwidth=bandwidth) as servers:
            tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(servers.addresses), job_name="chief")
            with tf.device("/job:ps/task:1"):
                value = tf.Variable(tf.zeros([size], tf.uint8))
            with tf.device("/job:worker/task:0"):
                ones = tf.ones([size], tf.uint8)
                counts, times = [servers.traffic()], [time.monotonic()]
                value.assign(ones)
                there = int(tf.gather(value, size - 1))  # one byte, which waits for all
                counts, times = [*counts, servers.traffic()], [*times, time.monotonic()]
                back = int(tf.reduce_min(value))
                counts, times = [*counts, servers.traffic()], [*times, time.monotonic()]
            return there, back, np.diff(times), np.diff(counts, axis=0)  # (phases,), (phases, servers, 2)

    size, bandwidth = 500_000, 5e6
    there, back, seconds, bytes_moved = in_private_network(move, size, bandwidth)
    assert there == back == 1
    assert bytes_moved[:, 0].max() < size / 10, "the other server is idle"
    (received, few), (fewer, sent) = bytes_moved[:, 1]
    assert max(few, fewer) < size / 10
    assert size < received < 1.1 * size
    assert size < sent < 1.1 * size
    assert min(seconds) > 0.5 * size / bandwidth, "the link is as slow as it was asked to be, in each direction"


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(limited_links.shutil, "which", lambda program: None)
    assert not can_limit_links()
    with pytest.raises(TfperfError, match=r"expected the program ip, .* Received: none; install iproute2$"):
        limited_links.join_by_links([1], 1e6)


def test_a_refusal_is_one_line(monkeypatch):
    refused = Finished(2, "", "RTNETLINK answers:\n Operation not permitted\n")
    monkeypatch.setattr(limited_links.shutil, "which", lambda program: program)
    monkeypatch.setattr(limited_links, "run", lambda *_, **__: refused)
    with pytest.raises(TfperfError, match=r"dev lo: RTNETLINK answers: Operation not permitted$"):
        limited_links.join_by_links([1], 1e6)


def test_without_rights_nothing_is_promised(monkeypatch):
    monkeypatch.setattr(limited_links.os, "geteuid", lambda: 1000)
    assert not can_limit_links()
