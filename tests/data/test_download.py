"""Downloads: whole and right, or not there, and never waiting for ever."""

import gzip
import io
import multiprocessing
import sys

import pytest

from tfperf.data import debian, download, loading
from tfperf.data.download import fetch
from tfperf.errors import DataError

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def first(sample):
    """One file of the sample: what is expected, and its bytes."""
    file = sample.spec.files[0]
    return file, sample.packed[file.filename]


def nothing_in(folder):
    return not folder.exists() or list(folder.iterdir()) == []


def test_a_file_arrives_whole(server, first, tmp_path):
    file, content = first
    server.serve("x.gz", content)
    fetch(server.url + "x.gz", tmp_path / "new/folder/x.gz", file)
    assert (tmp_path / "new/folder/x.gz").read_bytes() == content
    assert [path.name for path in (tmp_path / "new/folder").iterdir()] == ["x.gz"]


def test_the_gzip_file_itself_is_asked_for(server, first, tmp_path):
    file, content = first

    def answer(handler):
        if "gzip" in handler.headers["Accept-Encoding"]:
            handler.send_error(400)
        else:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(content)

    server.answers["/x.gz"] = answer
    fetch(server.url + "x.gz", tmp_path / "x.gz", file)
    assert (tmp_path / "x.gz").read_bytes() == content


@pytest.mark.parametrize("damage", ["other contents", "no gzip", "truncated", "broken off", "too long"])
def test_wrong_bytes_get_no_name(damage, server, first, tmp_path):
    file, content = first
    wrong, claimed = {
        "other contents": (gzip.compress(bytes(file.size)), None),
        "no gzip": (b"<html>log in here</html>", None),
        "truncated": (content[:-10], None),
        "broken off": (content[:-10], len(content)),
        "too long": (content + bytes(10 * file.packed_limit), None),
    }[damage]
    server.serve("x.gz", wrong, claimed=claimed)
    with pytest.raises(
        DataError, match=r"x\.gz (is not the file it should be|cannot be reached: the connection broke)"
    ):
        fetch(server.url + "x.gz", tmp_path / "x.gz", file)
    assert nothing_in(tmp_path)


def test_an_endless_answer_is_cut_off(server, first, tmp_path):
    file, _ = first

    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(bytes(1 << 16))  # until the client has gone

    server.answers["/x.gz"] = answer
    with pytest.raises(DataError, match="expected at most"):
        fetch(server.url + "x.gz", tmp_path / "x.gz", file)
    assert nothing_in(tmp_path)


def test_a_damaged_file_leaves_an_older_one_as_it_was(server, first, tmp_path):
    server.serve("x.gz", b"rubbish")
    (tmp_path / "x.gz").write_bytes(b"older")
    with pytest.raises(DataError):
        fetch(server.url + "x.gz", tmp_path / "x.gz", first[0])
    assert (tmp_path / "x.gz").read_bytes() == b"older"


def test_a_refusal_is_told(server, first, tmp_path):
    with pytest.raises(DataError, match="answered 404 Not Found, expected 200"):
        fetch(server.url + "x.gz", tmp_path / "x.gz", first[0])


def test_a_redirect_is_not_followed(server, first, tmp_path):
    file, content = first

    def answer(handler):
        handler.send_response(302)
        handler.send_header("Location", server.url + "elsewhere")
        handler.end_headers()

    server.answers["/x.gz"] = answer
    server.serve("elsewhere", content)
    with pytest.raises(DataError, match="answered 302"):
        fetch(server.url + "x.gz", tmp_path / "x.gz", file)
    assert server.requests == ["/x.gz"]


@pytest.mark.parametrize("url", ["http://example.org/x.gz", "ftp://localhost/x.gz", "file:///x.gz", "x.gz"])
def test_only_https_leaves_this_machine(url, first, tmp_path):
    with pytest.raises(ValueError, match="expected an https URL"):
        fetch(url, tmp_path / "x.gz", first[0])


def test_a_closed_door_is_told(dead_url, own_folders, first):
    with pytest.raises(DataError, match="cannot be reached: the connection was refused"):
        fetch(dead_url + "x.gz", own_folders / "x.gz", first[0])


def test_silence_ends_at_the_deadline(server, first, tmp_path):
    server.answers["/x.gz"] = lambda handler: server.release.wait(30)
    with pytest.raises(DataError, match=r"no answer within 0\.2 s"):
        fetch(server.url + "x.gz", tmp_path / "x.gz", first[0], contact_s=0.2)
    assert nothing_in(tmp_path)


def test_a_name_lookup_that_hangs_ends_at_the_deadline(server, first, tmp_path, monkeypatch):
    import socket

    def hang(*arguments, **keywords):
        server.release.wait(30)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with pytest.raises(DataError, match=r"no answer within 0\.2 s"):
        fetch("https://data.invalid/x.gz", tmp_path / "x.gz", first[0], contact_s=0.2)


def test_a_stalled_download_ends(server, first, tmp_path):
    file, content = first
    server.serve("x.gz", content, stall_after=20)
    with pytest.raises(DataError, match=r"stalled: less than 64 KiB came within 0\.2 s|timed out"):
        fetch(server.url + "x.gz", tmp_path / "x.gz", file, stall_s=0.2)
    assert nothing_in(tmp_path)


def test_a_server_that_drips_ends_too(server, first, tmp_path):
    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        while not server.release.wait(0.02):  # each byte comes well within the read timeout
            handler.wfile.write(b"x")

    server.answers["/x.gz"] = answer
    with pytest.raises(DataError, match="stalled"):
        fetch(server.url + "x.gz", tmp_path / "x.gz", first[0], stall_s=1.0)
    server.release.set()


def test_without_a_network_all_deadlines_end_within_10_s():
    assert download.CONTACT_S < 9
    assert debian.ANSWER_S + loading.CONTACT_AFTER_DEBIAN_S < 9


def test_a_folder_that_cannot_be_made_is_told(server, first, tmp_path):
    file, content = first
    server.serve("x.gz", content)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written: .*; set TFPERF_CACHE"):
        fetch(server.url + "x.gz", tmp_path / "file/x.gz", file)


def test_processes_that_start_together_end_with_one_whole_file(server, first, tmp_path):
    file, content = first
    server.serve("x.gz", content)
    target = tmp_path / "x.gz"
    processes = [SPAWN.Process(target=fetch, args=(server.url + "x.gz", target, file)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(server.requests) == 3
    assert target.read_bytes() == content
    assert list(tmp_path.iterdir()) == [target]


def test_a_killed_download_leaves_nothing_under_the_final_name(server, first, tmp_path):
    file, content = first
    half_sent = SPAWN.Event()

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])
        handler.wfile.flush()
        half_sent.set()
        server.release.wait(30)

    server.answers["/x.gz"] = answer
    process = SPAWN.Process(target=fetch, args=(server.url + "x.gz", tmp_path / "x.gz", file))
    process.start()
    assert half_sent.wait(60)
    process.kill()
    process.join(30)
    assert process.exitcode == -9
    assert not (tmp_path / "x.gz").exists()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(terminal, server, first, tmp_path, monkeypatch):
    file, content = first
    server.serve("x.gz", content)
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    fetch(server.url + "x.gz", tmp_path / "x.gz", file)
    assert ("downloading x.gz" in stderr.getvalue()) is terminal
