"""What a build's output says."""

import pytest

from tfperf.parallel.horovod_build.build_log import first_error, step_of


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "  [ 12%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/common/linux.cc.o",
            (12, "linux.cc"),
        ),
        ("[100%] Linking CXX shared library /tmp/x/mpi_lib.cpython-311.so", (100, "mpi_lib.cpython-311.so")),
        ("  [ 70%] Linking CXX static library libgloo.a", (70, "libgloo")),
        ("  [ 70%] Built target gloo", None),
        ("  /tmp/x/gloo/allreduce.cc:443:10: warning: [ 3%] Building nothing", None),
        ("", None),
    ],
)
def test_make_s_steps_are_seen(line, step):
    assert step_of(line) == step


COMPILER = [
    "  In file included from /tmp/p/horovod_1/horovod/tensorflow/mpi_ops.cc:25:",
    "  /tmp/p/horovod_1/horovod/tensorflow/xla_mpi_ops.cc:28:10: fatal error: tensorflow/x.h: No such file",
    "  /tmp/p/horovod_1/horovod/tensorflow/xla_mpi_ops.cc:99:1: error: a later one",
    "  make[2]: *** [xla_mpi_ops.cc.o] Error 1",
    "  error: subprocess-exited-with-error",
    "  ERROR: Failed building wheel for horovod",
]


def test_the_first_of_the_compiler_comes_before_make_s_and_pip_s():
    assert first_error(COMPILER) == "xla_mpi_ops.cc:28:10: fatal error: tensorflow/x.h: No such file"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*COMPILER, "  /usr/bin/ld: final link failed: No space left on device"], "No space left on device"),
        (["g++: fatal error: Killed signal terminated program cc1plus", *COMPILER], "--jobs 1"),
        (["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If"], "its SHA-256 differs"),
        (["  /usr/bin/ld: cannot find -lmpi: No such file", "collect2: error: ld returned 1 exit status"], "-lmpi"),
        (["nvcc fatal   : Unsupported gpu architecture 'compute_52'", "error: x"], "compute_52"),
        (["/x/kernels.cu(12): error: identifier undefined", "ERROR: Failed"], "kernels.cu(12): error: identifier"),
        (["CMake Error at x.cmake:3 (message):", "  NCCL is not there", "ERROR: y"], "(message): NCCL is not there"),
        (
            ["WARNING: z", "ERROR: Could not find a version", "ERROR: No matching distribution"],
            "Could not find a version",
        ),
        (["something", "", "the end"], "the end"),
        ([], "it said nothing"),
    ],
)
def test_the_telling_line_is_found(lines, words):
    assert words in first_error(lines)
    assert "\n" not in first_error(lines)


def test_a_long_line_is_cut():
    assert len(first_error(["x.cc:1:1: error: " + "template<" * 500])) < 250
