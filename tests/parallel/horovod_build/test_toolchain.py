"""The compiler and make, against scripts that play them."""

import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.toolchain import Compiler, check_make, find_compiler


@pytest.mark.parametrize(("kind", "name"), [("gcc", "c++"), ("gcc", "g++"), ("clang", "clang++")])
def test_it_is_found_by_its_names(fake_compiler, kind, name):
    fake_compiler(name, kind)
    assert find_compiler() == Compiler((name,), kind, "12.2.0")


def test_cxx_is_heeded_with_all_its_words(fake_compiler, programs, monkeypatch):
    fake_compiler("g++", major=10)
    fake_compiler("g++-13", major=13)
    programs("ccache", 'exec "$@"')
    monkeypatch.setenv("PATH", f"{programs('x').parent}:/usr/bin:/bin")
    monkeypatch.setenv("CXX", f"ccache {programs('x').parent / 'g++-13'}")
    assert find_compiler().version == "13.2.0"
    assert find_compiler().command[0] == "ccache"


def test_no_compiler_says_what_to_install(programs):
    with pytest.raises(HorovodError, match=r"found none on the PATH; apt-get install g\+\+ make"):
        find_compiler()


def test_a_cxx_that_is_not_there_is_named(programs, monkeypatch):
    monkeypatch.setenv("CXX", "g++-99 -m64")
    with pytest.raises(HorovodError, match=r"found no program 'g\+\+-99'; apt-get install"):
        find_compiler()


@pytest.mark.parametrize(("kind", "major"), [("gcc", 8), ("clang", 8)])
def test_one_before_cpp17_is_too_old(fake_compiler, kind, major):
    fake_compiler("c++", kind, major)
    with pytest.raises(HorovodError, match=rf"expected {kind} 9 or later, for C\+\+17; c\+\+ is {kind} 8\.2\.0"):
        find_compiler()


@pytest.mark.parametrize(("kind", "major"), [("gcc", 9), ("clang", 9)])
def test_the_oldest_one_is_good_enough(fake_compiler, kind, major):
    fake_compiler("c++", kind, major)
    assert find_compiler().version == "9.2.0"


def test_one_without_its_library_says_what_it_lacks(fake_compiler):
    fake_compiler(error="x.cc:1:10: fatal error: filesystem: No such file or directory")
    with pytest.raises(HorovodError, match=r"few lines of C\+\+17, but: x\.cc:1:10: fatal error: filesystem.*apt-get"):
        find_compiler()


def test_one_that_does_not_run_is_told(programs):
    programs("g++", "echo 'cc1plus: not found'; exit 1")
    with pytest.raises(HorovodError, match="does not preprocess an empty file: cc1plus: not found; apt-get"):
        find_compiler()


def test_make_is_asked_for(programs):
    programs("cc")
    with pytest.raises(HorovodError, match="expected make on the PATH to build Horovod with, found none; apt-get"):
        check_make()
    programs("make")
    check_make()


def test_a_c_compiler_is_asked_for(programs, monkeypatch):
    programs("gmake")
    with pytest.raises(HorovodError, match=r"expected a C compiler .* none named cc or gcc or clang; apt-get"):
        check_make()
    monkeypatch.setenv("CC", "gcc-13")
    programs("cc")
    with pytest.raises(HorovodError, match="none named gcc-13"):
        check_make()
    programs("gcc-13")
    check_make()
