"""TF_CONFIG. That TensorFlow reads it so is tested in tests/parallel/several_hosts."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfperf.errors import HorovodError
from tfperf.parallel.launch.tf_config import LAST_PORT, servers_warning, tf_configs

HOSTS = ["node1", "node1", "node2", "10.0.0.3"]


def test_without_parameter_servers_all_are_workers():
    configs = [json.loads(text) for text in tf_configs(HOSTS, 2222)]
    addresses = ["node1:2222", "node1:2223", "node2:2224", "10.0.0.3:2225"]
    assert configs == [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}} for index in range(4)
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are busy
@given(st.integers(1, 40), st.integers(1, 40))
def test_with_them_each_has_its_own_address_and_the_role_that_is_there(workers, servers):
    number = 1 + workers + servers
    configs = [json.loads(text) for text in tf_configs(["host"] * number, 2222, parameter_servers=servers)]
    (cluster,) = {json.dumps(config["cluster"]) for config in configs}
    cluster = json.loads(cluster)
    assert {role: len(addresses) for role, addresses in cluster.items()} == {
        "chief": 1,
        "worker": workers,
        "ps": servers,
    }
    own = [cluster[config["task"]["type"]][config["task"]["index"]] for config in configs]
    assert own == [f"host:{2222 + rank}" for rank in range(number)]


@pytest.mark.parametrize(("number", "port", "servers"), [(2, LAST_PORT, 0), (2, 2222, 1), (3, 2222, 2)])
def test_what_cannot_be_is_refused(number, port, servers):
    with pytest.raises(HorovodError, match=r"expected .* Received: "):
        tf_configs(["host"] * number, port, parameter_servers=servers)


def test_the_last_port_is_one():
    assert f"host:{LAST_PORT}" in tf_configs(["host"] * 2, LAST_PORT - 1)[0]


def test_the_warning_names_the_ports():
    assert "2222 to 2224" in servers_warning(2222, 3)
