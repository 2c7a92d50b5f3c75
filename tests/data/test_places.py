"""Where data sets are looked for, and that Keras agrees about its own cache."""

import subprocess
import sys
from pathlib import Path

import pytest

from tfperf.data.expected import FASHION_MNIST, MNIST
from tfperf.data.places import download_place, keras_folders, places
from tfperf.errors import CacheError


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("TFPERF_CACHE", "XDG_CACHE_HOME", "KERAS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_keras_cache_follows_the_environment(home, monkeypatch):
    assert keras_folders() == [home / ".keras/datasets"]
    monkeypatch.setenv("KERAS_HOME", "~/elsewhere")
    assert keras_folders() == [home / "elsewhere/datasets"]


def test_keras_cache_that_cannot_be_written_has_keras_s_fallback(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv("KERAS_HOME", str(home / "file/keras"))
    assert keras_folders() == [home / "file/keras/datasets", Path("/tmp/.keras/datasets")]


def test_without_a_home_other_places_are_looked_at_all_the_same(home, monkeypatch):
    for module in ("caching", "data.places"):
        monkeypatch.setattr(f"tfperf.{module}.home_folder", lambda: None)
    assert keras_folders() == [Path("/tmp/.keras/datasets")]
    labels = ["Keras cache", "Debian package dataset-fashion-mnist"]
    assert [place.label for place in places(FASHION_MNIST)] == labels
    with pytest.raises(CacheError, match="set TFPERF_CACHE"):
        download_place(FASHION_MNIST)


def test_keras_itself_looks_there(home):
    (home / "origin").write_bytes(b"data")
    program = (
        "import keras, sys; "
        "print(keras.utils.get_file('file', origin=sys.argv[1], cache_subdir='datasets/fashion-mnist'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, (home / "origin").as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(result.stdout.splitlines()[-1]).parent == keras_folders()[0] / "fashion-mnist"


def test_order_of_places(home):
    kinds = [place.label for place in places(FASHION_MNIST)]
    package = "Debian package dataset-fashion-mnist"
    assert kinds == ["Keras cache", package, f"unpacked {package}", "tfperf cache"]
    assert [place.label for place in places(MNIST)] == ["Keras cache", "tfperf cache"]
    assert places(FASHION_MNIST)[-1] == download_place(FASHION_MNIST)
    assert [place.folder for place in places(FASHION_MNIST)] == [
        home / ".keras/datasets/fashion-mnist",
        Path("/usr/share/datasets/fashion-mnist"),
        home / ".cache/tfperf/dataset-fashion-mnist/usr/share/datasets/fashion-mnist",
        home / ".cache/tfperf/datasets/fashion-mnist",
    ]


def test_remedies_say_what_to_do(home):
    _, installed, unpacked, own = (place.remedy for place in places(FASHION_MNIST))
    assert installed == "Reinstall the Debian package dataset-fashion-mnist."
    root = home / ".cache/tfperf/dataset-fashion-mnist"
    assert unpacked == f"Delete the folder {root} and run `tfperf data fashion_mnist`."
    assert own == "Delete it and run `tfperf data fashion_mnist`."
