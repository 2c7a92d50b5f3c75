"""tfperf.importing: Python's garbage collector while libraries load, and libraries that others are not to find."""

import gc
import importlib
import json
import subprocess
import sys

import pytest

from tfperf.importing import absent, no_collections


@pytest.fixture(params=[True, False])
def enabled(request):
    """The collector, on or off before; as it was afterwards."""
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_nothing_is_collected_within_and_all_is_as_before_after_it(enabled: bool):
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_it_is_as_before_after_an_error_too(enabled: bool):
    with pytest.raises(ImportError), no_collections():
        raise ImportError("no module")
    assert gc.isenabled() is enabled


def test_it_may_decorate_a_function(enabled: bool):
    assert no_collections()(gc.isenabled)() is False
    assert gc.isenabled() is enabled


def test_an_absent_library_cannot_be_imported_meanwhile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(ImportError), absent("colorsys"):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys").rgb_to_hsv


def test_a_library_that_is_loaded_stays():
    with absent("json"):
        assert importlib.import_module("json") is json
    assert sys.modules["json"] is json


def test_keras_can_do_without():
    code = """
import sys
from tfperf.importing import KERAS_CAN_DO_WITHOUT, absent

with absent(*KERAS_CAN_DO_WITHOUT):
    import tensorflow, keras
assert not set(KERAS_CAN_DO_WITHOUT) & set(sys.modules)
net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
net.compile("sgd", "mse")
net.fit(tensorflow.ones([4, 2]), tensorflow.ones([4, 1]), verbose=0)
import matplotlib, sklearn
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_module_runs_with_its_arguments_and_without_what_keras_can_do_without(tmp_path):
    (tmp_path / "a_tool.py").write_text(
        "import gc, importlib, sys\n"
        "try:\n    importlib.import_module('matplotlib')\n    found = True\nexcept ImportError:\n    found = False\n"
        "print(__name__, sys.argv[1:], found, gc.isenabled())\nsys.exit(3)\n"
    )
    command = [sys.executable, "-m", "tfperf.importing", "a_tool", "--dir", "here"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout == "__main__ ['--dir', 'here'] False False\n"
