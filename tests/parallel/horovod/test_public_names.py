"""`tfperf.parallel.horovod`: its names are there and described, load late, and say what to do without Horovod."""

import subprocess
import sys

import pytest

import tfperf.parallel.horovod as hvd
from tfperf.errors import HorovodError


@pytest.mark.parametrize("name", hvd.__all__)
def test_every_public_name_is_there_and_described(name):
    assert getattr(hvd, name).__doc__ or isinstance(getattr(hvd, name), int)
    assert name in dir(hvd)


def test_importing_it_imports_neither_tensorflow_nor_horovod():
    code = "import sys, tfperf.parallel.horovod; sys.exit('tensorflow' in sys.modules or 'horovod' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_horovod_the_first_name_used_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)  # as if it were not installed
    monkeypatch.delitem(vars(hvd), "init", raising=False)
    with pytest.raises(HorovodError, match="run `tfperf horovod install`"):
        _ = hvd.init


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hvd.nonsense
