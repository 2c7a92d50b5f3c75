"""The forwarding headers."""

import pytest

from tfperf.errors import HorovodError
from tfperf.parallel.horovod_build.headers import MOVED, include_folders, write_forwarding_headers
from tfperf.parallel.horovod_build.tensorflow_here import find_tensorflow


def forwarded(folder):
    """Header that Horovod includes -> the lines of the one that stands for it."""
    return {
        path.relative_to(folder / "tensorflow/compiler/xla").as_posix(): path.read_text().splitlines()
        for path in folder.rglob("*.h")
    }


def test_every_header_is_in_the_real_tensorflow_or_leads_to_one_that_is(tmp_path):
    tensorflow = find_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path, gpu=False)
    headers = forwarded(tmp_path)
    for name in MOVED:
        there = (tensorflow.include / "tensorflow/compiler/xla" / name).is_file()
        assert there != (name in headers), name
    for first, *_ in headers.values():
        assert (tensorflow.include / first.removeprefix('#include "').removesuffix('"')).is_file()
    assert list(headers) == ["client/xla_builder.h"], "of TensorFlow 2.21 it is this one"
    assert len(include_folders(tensorflow)) == 2


def test_what_tensorflow_lacks_is_forwarded(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path / "forwarding", gpu=False)
    headers = forwarded(tmp_path / "forwarding")
    assert set(headers) == set(MOVED)
    assert headers["shape.h"] == ['#include "xla/shape.h"']
    assert headers["client/xla_builder.h"][0] == '#include "xla/hlo/builder/xla_builder.h"'


def test_the_name_status_or_is_given_back_where_its_header_is_gone(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path / "without", gpu=False)
    assert "using StatusOr" in forwarded(tmp_path / "without")["client/xla_builder.h"][-1]
    (tensorflow.include / "xla/statusor.h").write_text("")
    write_forwarding_headers(tensorflow, tmp_path / "with", gpu=False)
    assert len(forwarded(tmp_path / "with")["client/xla_builder.h"]) == 1


def test_a_build_for_gpus_gets_the_function_that_tensorflow_lost(tmp_path):
    tensorflow = find_tensorflow()
    write_forwarding_headers(tensorflow, tmp_path, gpu=True)
    lines = forwarded(tmp_path)["stream_executor/stream.h"]
    assert any("AsGpuStreamValue(Stream* stream)" in line for line in lines)
    header = (tensorflow.include / "xla/stream_executor/stream.h").read_text()
    assert "platform_specific_handle() const" in header, "what the function is made of"


def test_an_older_place_is_found_too(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow("2.18.1", without=["hlo/builder/xla_builder.h"])
    older = tensorflow.include / "xla/client/xla_builder.h"
    older.parent.mkdir(parents=True)
    older.write_text("")
    write_forwarding_headers(tensorflow, tmp_path / "forwarding", gpu=False)
    headers = forwarded(tmp_path / "forwarding")
    assert headers["client/xla_builder.h"][0] == '#include "xla/client/xla_builder.h"'


def test_a_tensorflow_that_moved_one_again_is_unfit(fake_tensorflow, tmp_path):
    tensorflow = fake_tensorflow("2.30.0", without=["shape.h"])
    with pytest.raises(
        HorovodError, match=r"expected xla/shape\.h .*tensorflow 2\.30\.0 has none.*use TensorFlow 2\.21"
    ):
        write_forwarding_headers(tensorflow, tmp_path / "forwarding", gpu=False)


def test_folders_that_a_version_has_not_are_left_out(fake_tensorflow):
    tensorflow = fake_tensorflow()
    (tensorflow.include / "external/highwayhash").rmdir()
    assert [folder.name for folder in include_folders(tensorflow)] == ["src"]
