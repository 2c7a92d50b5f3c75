"""The loopback network, and the process at its other end."""

import socket

import psutil

from tfperf.hardware.ceilings import echo, loopback
from tfperf.hardware.ceilings.loopback import measure_loopback


def test_loopback_is_there_and_leaves_no_process():
    before = {process.pid for process in psutil.Process().children()}
    found = measure_loopback(2**24)
    assert 0 < found.round_trip_seconds < 1
    assert found.bytes_per_second > 1e6
    assert [len(one.passes) for one in found] == [8, 8]
    assert {process.pid for process in psutil.Process().children()} == before


def test_loopback_listens_on_this_machine_alone(monkeypatch):
    asked = []
    genuine = socket.create_server

    def create_server(address, **options):
        asked.append(address[0])
        return genuine(address, **options)

    monkeypatch.setattr(loopback.socket, "create_server", create_server)
    measure_loopback(2**20)
    assert asked == ["127.0.0.1"]


def test_without_an_answer_loopback_is_not_told(monkeypatch, tmp_path):
    silent = tmp_path / "silent.py"
    silent.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(loopback.echo, "__file__", str(silent))
    monkeypatch.setattr(loopback, "DEADLINE", 0.2)
    assert measure_loopback() is None
    silent.write_text("")
    assert measure_loopback() is None
    assert not [one for one in psutil.Process().children() if str(silent) in one.cmdline()]


def test_the_other_end_sends_back_single_bytes_and_tells_when_all_are_there():
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(30)
        here.sendall(b"ab" + bytes(1000))
        echo.answer(_Plain(there), 2, 1000)
        assert here.recv(10) == b"ab."


class _Plain:
    """A socket that is not TCP's, whose options differ."""

    def __init__(self, line):
        self._line = line

    def setsockopt(self, *_):
        pass

    def __getattr__(self, name):
        return getattr(self._line, name)
