"""The variables of the ranks."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfperf.errors import HorovodError
from tfperf.parallel.launch import environment as module
from tfperf.parallel.launch.environment import (
    LAST_PORT,
    SENT,
    rank_environment,
    sent_environment,
    servers_warning,
    tf_configs,
    threads_per_rank,
)

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
WARNING, LIMIT = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"


def made(base=None, **options):
    return rank_environment(base or {}, **{"default_threads": 3, "address": "127.0.0.1"} | options)


def test_defaults():
    variables = made()
    assert {variables[name] for name in THREADS} == {"3"}
    assert (variables[WARNING], variables[LIMIT]) == ("60", "300")
    assert variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "60"


def test_the_users_own_variables_win_over_defaults():
    own = {"OMP_NUM_THREADS": "5", WARNING: "7", LIMIT: "9", "HOROVOD_GLOO_TIMEOUT_SECONDS": "11", "OTHER": "x"}
    variables = made(own)
    assert own.items() <= variables.items()
    assert variables["TF_NUM_INTRAOP_THREADS"] == "3"


def test_options_win_over_the_users_own_variables():
    variables = made(dict.fromkeys(THREADS, "5") | {WARNING: "7"}, threads=2, stall_warning=10, stall_limit=10)
    assert {variables[name] for name in THREADS} == {"2"}
    assert (variables[WARNING], variables[LIMIT]) == ("10", "10")


def test_the_least_threads_between_operations_win_over_all():
    variables = made({THREADS[1]: "2"}, threads=2, least_between=5)
    assert [variables[name] for name in THREADS] == ["2", "5", "2"]
    assert made(threads=7, least_between=5)[THREADS[1]] == "7"


def test_the_base_is_not_changed():
    base = {"PATH": "/bin"}
    made(base)
    assert base == {"PATH": "/bin"}


@pytest.mark.parametrize("options", [{"stall_limit": 59}, {"stall_warning": 301}, {"base": {LIMIT: "5"}}])
def test_a_limit_below_the_warning_is_refused(options):
    """Horovod would take it for "never" with a warning that nobody reads."""
    with pytest.raises(HorovodError, match="stall limit"):
        made(**options)


def test_no_limit_can_be_asked_for():
    assert made(stall_limit=0)[LIMIT] == "0"


def test_a_variable_that_is_no_number_is_named():
    for name in (WARNING, THREADS[1], "HOROVOD_GLOO_TIMEOUT_SECONDS"):
        with pytest.raises(HorovodError, match=f"{name}.*soon"):
            made({name: "soon"})


@pytest.mark.parametrize("base", [{}, {"PATH": ""}, {"PATH": os.environ["PATH"]}])
def test_python_is_this_interpreters(base):
    found = shutil.which("python", path=made(base)["PATH"])
    assert Path(found).parent == Path(sys.executable).parent


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_the_rendezvous_server_is_asked_without_a_proxy(name):
    assert made()["no_proxy"] == "127.0.0.1"
    assert made({name: "example.org"})["no_proxy"] == "example.org,127.0.0.1"


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 1, 8), (8, 3, 2), (2, 2, 1), (2, 4, 1)])
def test_ranks_share_the_cores(monkeypatch, cores, ranks, threads):
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    assert threads_per_rank(ranks) == threads


@pytest.mark.parametrize(
    "name",
    ["HOROVOD_RANK", "TF_NUM_INTRAOP_THREADS", "TF_CONFIG", "KERAS_BACKEND", "OMP_NUM_THREADS", "NCCL_DEBUG", "PATH"],
)
def test_what_ranks_elsewhere_need_is_sent(name):
    assert sent_environment({name: "a\nb"}) == {name: "a\nb"}


@pytest.mark.parametrize(
    "name", ["HOME", "TF", "MY_TF_X", "PATHS", "TF_TOKEN", "HOROVOD_SECRET_KEY", "KERAS_api_Key", "NCCL_AUTH"]
)
def test_what_they_do_not_need_or_what_looks_like_a_credential_is_sent_on_demand(name):
    assert sent_environment({name: "x"}) == {}
    assert sent_environment({name: "x", "OTHER": "y"}, [name]) == {name: "x"}


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "TFPERF_CHILD", "TFPERF_SHARED_GROUP"])
def test_what_means_something_on_one_machine_stays_there(name):
    assert sent_environment({name: "0"}) == {}


def test_all_that_ranks_share_is_sent():
    shared = made()
    assert sent_environment(shared) == shared


def test_the_documentation_names_what_is_sent():
    text = (Path(__file__).parents[3] / "docs" / "several_hosts.md").read_text()
    (paragraph,) = re.findall(r"These are sent: (.*?)\.\n", text, re.DOTALL)
    assert re.findall("`(.*?)`", paragraph) == sorted(SENT, key=str.lower)


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
