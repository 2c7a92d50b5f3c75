"""tfperf's own cache is where the user's environment says."""

import pytest

from tfperf.caching import cache_folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("TFPERF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_own_cache_follows_the_environment(home, monkeypatch):
    assert cache_folder() == home / ".cache/tfperf"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == home / ".cache/tfperf"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert cache_folder() == home / "xdg/tfperf"
    monkeypatch.setenv("TFPERF_CACHE", "")
    assert cache_folder() == home / "xdg/tfperf"
    monkeypatch.setenv("TFPERF_CACHE", "~/mine")
    assert cache_folder() == home / "mine"
    monkeypatch.chdir(home)
    monkeypatch.setenv("TFPERF_CACHE", "here")
    assert cache_folder() == home / "here"
