"""Hosts: how they are written, whether they are this machine, and scripts that discover them."""

import socket
import string
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfperf.errors import HorovodError
from tfperf.parallel.launch import hosts
from tfperf.parallel.launch.ending import Ending, LaunchEnded
from tfperf.parallel.launch.hosts import (
    DiscoveryScript,
    FixedHosts,
    RankHost,
    address_of,
    is_this_machine,
    loopback_interface,
    parse_hosts,
    read_hostfile,
)

NAMES = st.text(string.ascii_lowercase + string.digits + ".-_", max_size=20).map(lambda rest: f"h{rest}")
HOSTS = st.lists(
    st.builds(RankHost, NAMES, st.integers(1, 9999)), min_size=1, max_size=8, unique_by=lambda host: host.name
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are busy
@given(HOSTS)
def test_hosts_are_read_as_they_are_written(hosts):
    assert parse_hosts(",".join(f"{host.name}:{host.slots}" for host in hosts)) == tuple(hosts)
    assert parse_hosts(" , ".join(f"{host.name}:{host.slots}" for host in hosts)) == tuple(hosts)


@pytest.mark.parametrize(
    "text", ["", "a", "a:", "a:0", "a:-1", "a:x", ":2", "a:2,,b:2", "a:2;b:2", "-oProxyCommand=x:1", "a b:1", "a:2,a:1"]
)
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(HorovodError, match="expected"):
        parse_hosts(text)


def test_a_hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\n\nnode-1 slots=4\n  10.0.0.2   slots = 2  \n")
    assert read_hostfile(path) == (RankHost("node-1", 4), RankHost("10.0.0.2", 2))


@pytest.mark.parametrize("text", ["", "# none\n", "node-1\n", "node-1 slots=0\n", "a slots=1\na slots=1\n", "\xff"])
def test_a_hostfile_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(HorovodError):
        read_hostfile(path)


def test_a_missing_hostfile_is_named(tmp_path):
    with pytest.raises(HorovodError, match="missing"):
        read_hostfile(tmp_path / "missing")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.0.7", socket.gethostname()])
def test_names_of_this_machine(name):
    assert is_this_machine(name)


@pytest.mark.parametrize("name", ["192.0.2.200", "no-such-host.invalid"])  # RFC 5737 and RFC 2606 keep them free
def test_names_of_other_machines(name):
    assert not is_this_machine(name)


def test_every_address_of_a_name_must_be_this_machines(monkeypatch):
    entries = [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.1", "192.0.2.200")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: entries)
    assert not is_this_machine("both")


def test_the_loopback_interface_has_the_loopback_address():
    assert address_of(loopback_interface()) == "127.0.0.1"


def test_an_unknown_interface_is_refused_with_the_known_ones():
    with pytest.raises(HorovodError, match=f"nonsense0.*{loopback_interface()}"):
        address_of("nonsense0")


@pytest.fixture
def discovery(tmp_path):
    """A function that makes a discovery of a script that prints what a file says, and the file."""
    answer = tmp_path / "answer"

    def discovery(text, **options):
        answer.write_text(text)
        script = tmp_path / "script with space.py"
        script.write_text(f"print(open({str(answer)!r}).read())")
        return DiscoveryScript(f"{sys.executable} '{script}'", **options)

    discovery.answer = answer
    return discovery


def test_a_discovery_script_is_asked_each_time(discovery):
    script = discovery("a:2\nb\n\na:2\n")
    assert script.find_available_hosts_and_slots() == {"a": 2, "b": 1}
    discovery.answer.write_text("b:1\n")
    assert script.find_available_hosts_and_slots() == {"b": 1}


def test_no_hosts_yet_is_an_answer(discovery):
    assert discovery("\n").hosts() == ()


@pytest.mark.parametrize("text", ["a:0\n", "a:1\na:2\n", "-oProxyCommand=x:1\n", "a:b:c\n"])
def test_what_a_discovery_script_should_not_print_is_refused(discovery, text):
    with pytest.raises(HorovodError, match="expected"):
        discovery(text).hosts()


@pytest.mark.parametrize("command", ["", "no-such-script", "false", "'unbalanced"])
def test_a_discovery_script_that_fails_is_named(command):
    with pytest.raises(HorovodError, match="discovery script"):
        DiscoveryScript(command).hosts()


def test_a_discovery_script_that_fails_later_is_told_once_and_the_hosts_stay(discovery, capsys):
    script = discovery("a:1\n")
    script.find_available_hosts_and_slots()
    discovery.answer.write_text("a:1\nnonsense nonsense\n")
    assert [script.find_available_hosts_and_slots() for _ in range(3)] == [{"a": 1}] * 3
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture
def hanging(tmp_path):
    """A discovery script that hangs."""
    path = tmp_path / "hangs"
    path.write_text("#!/bin/sh\nsleep 600\n")
    path.chmod(0o755)
    return str(path)


def test_a_discovery_script_that_hangs_has_failed(hanging, monkeypatch):
    monkeypatch.setattr(hosts, "SCRIPT_SECONDS", 0.5)
    with pytest.raises(HorovodError, match=r"discovery script .* failed: it did not end within 0\.5 s"):
        DiscoveryScript(hanging).hosts()


def test_a_discovery_script_is_ended_with_the_launch(hanging):
    ending = Ending()
    threading.Timer(0.3, ending.ask).start()
    with pytest.raises(LaunchEnded):
        DiscoveryScript(hanging, ending).hosts()


def test_a_discovery_script_is_ended_once_nobody_wants_to_know(hanging, capsys):
    script = DiscoveryScript(hanging)
    threading.Timer(0.3, script.stop).start()
    assert script.find_available_hosts_and_slots() == {}
    assert capsys.readouterr().err == ""


def test_fixed_hosts_stay():
    fixed = FixedHosts(parse_hosts("a:1,b:2"))
    fixed.stop()
    assert fixed.find_available_hosts_and_slots() == {"a": 1, "b": 2}


def test_other_machines_are_left_out_of_a_run_on_loopback_and_told_once(discovery, capsys):
    script = discovery("localhost:1\n192.0.2.200:1\n", only_this_machine=True)
    assert [script.find_available_hosts_and_slots() for _ in range(3)] == [{"localhost": 1}] * 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "192.0.2.200" in line
    assert "--network-interfaces" in line
