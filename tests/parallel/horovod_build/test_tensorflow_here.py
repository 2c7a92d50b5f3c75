"""Which TensorFlow Horovod can be built for."""

import subprocess
import sys
from importlib import metadata

import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.tensorflow_here import TensorFlowHere, check_fit, find_tensorflow


def test_the_real_one_is_found_and_fit():
    found = check_fit(find_tensorflow())
    assert (found.distribution, found.version) == ("tensorflow", metadata.version("tensorflow"))
    assert (found.include / "tensorflow/core/public/version.h").exists()
    assert found.minor_version >= (2, 21)


def test_its_cuda_is_read_and_not_imported(fake_tensorflow):
    tensorflow = fake_tensorflow()
    assert tensorflow.cuda_version() is None
    build_info = tensorflow.folder / "python/platform/build_info.py"
    build_info.parent.mkdir(parents=True)
    build_info.write_text("build_info = OrderedDict([('cpu_compiler', 'clang'), ('cuda_version', '12.5.1')])")
    assert tensorflow.cuda_version() == "12.5.1"
    build_info.write_text("build_info = OrderedDict([('cpu_compiler', 'clang')])")
    assert tensorflow.cuda_version() is None


def test_the_room_imports_neither_tensorflow_nor_horovod():
    code = (
        "import sys, tfperf.parallel.horovod_build as room\n"
        "room.installed()\n"
        "sys.exit(bool({'tensorflow', 'keras', 'horovod'} & sys.modules.keys()))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_folder_without_code_is_no_tensorflow(tmp_path, monkeypatch):
    (tmp_path / "tensorflow").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_tensorflow() is None


def test_none_says_what_to_install():
    with pytest.raises(
        HorovodError, match=r"^expected TensorFlow 2\.16 or later .*found none; pip install tensorflow$"
    ):
        check_fit(None)


@pytest.mark.parametrize("version", ["2.15.1", "2.9.0", "1.15.5"])
def test_an_older_one_needs_no_help(fake_tensorflow, version):
    with pytest.raises(HorovodError, match=f"found {version}: .*pip install --no-build-isolation horovod"):
        check_fit(fake_tensorflow(version))


def test_the_one_whose_wheel_lacks_headers_is_unfit(fake_tensorflow):
    with pytest.raises(HorovodError, match=r"found 2\.19\.1, whose headers include llvm/.*; pip install tensorflow==2"):
        check_fit(fake_tensorflow("2.19.1"))


@pytest.mark.parametrize("version", ["2.16.0", "2.18.1", "2.20.0", "2.21.0", "2.22.0rc1", "3.0.0"])
def test_a_later_one_is_tried(fake_tensorflow, version):
    assert check_fit(fake_tensorflow(version)).version == version


def test_one_without_headers_is_refused(tmp_path):
    with pytest.raises(HorovodError, match=r"expected TensorFlow's C\+\+ headers.*reinstall tensorflow-cpu"):
        check_fit(TensorFlowHere("tensorflow-cpu", "2.21.0", tmp_path))


def test_spaces_in_the_path_are_refused(fake_tensorflow, tmp_path):
    with pytest.raises(HorovodError, match="path without spaces"):
        check_fit(fake_tensorflow(where=tmp_path / "my projects"))
