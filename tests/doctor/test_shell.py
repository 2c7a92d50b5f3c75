"""Lines to paste: for this Python, quoted; and tools that are asked, which may be missing, broken or slow."""

import os
import shlex
import sys

import psutil
import pytest

from tfperf.doctor import shell


def test_a_pip_elsewhere_is_not_the_one_meant(tools):
    tools("pip", "exit 0")
    assert shlex.split(shell.pip_install("a<2", "b[c]")) == [sys.executable, "-m", "pip", "install", "a<2", "b[c]"]


def test_a_pip_beside_this_python_has_a_short_name(tools, monkeypatch):
    pip = tools("pip", "exit 0")
    monkeypatch.setattr(sys, "executable", str(pip.with_name("python")))
    assert shell.pip_install("numpy<3,>=2.0") == "pip install 'numpy<3,>=2.0'"


def test_no_pip_on_the_path_is_no_error(tools):
    assert shell.own_command("tfperf", "data", "mnist").endswith("-m tfperf data mnist")


@pytest.mark.parametrize(("user", "words"), [(0, "apt-get install g++"), (1000, "sudo apt-get install g++")])
def test_apt_is_named_where_it_is(tools, monkeypatch, user, words):
    assert shell.apt_install("g++") == ""
    tools("apt-get", "exit 0")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert shell.apt_install("g++") == words


def test_an_answer_is_what_a_tool_prints(tools):
    tools("tool", "echo one; echo two >&2; echo $1 $LC_ALL")
    assert shell.answer("tool", "three") == "one\ntwo\nthree C"


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$", None])
def test_a_tool_that_fails_or_is_not_there_gives_no_answer(tools, script):
    if script:
        tools("tool", script)
    assert shell.answer("tool") is None


def test_a_tool_that_hangs_gives_no_answer_and_is_ended(tools):
    before = {child.pid for child in psutil.Process().children()}
    tools("tool", "exec /bin/sleep 600")
    assert shell.answer("tool", timeout=1) is None
    assert {child.pid for child in psutil.Process().children()} <= before


def test_an_answer_of_any_bytes_is_text(tools):
    tools("tool", "printf '\\377x'")
    assert shell.answer("tool") == "\ufffdx"
