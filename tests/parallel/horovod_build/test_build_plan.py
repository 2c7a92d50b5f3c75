"""The key of a build, and the environment that tells Horovod's build what to do."""

import dataclasses
import os
import re
import sysconfig
from pathlib import Path

from tfperf.parallel.horovod_build.build_plan import BuildPlan
from tfperf.parallel.horovod_build.requirements import Compiler, Mpi, Nccl

CUDA = Path("/usr/local/cuda")
PIP = Path("/site/nvidia/nccl")
NCCL = Nccl("2.27.3", PIP / "include", PIP / "lib/libnccl.so.2", True, "12.9", CUDA)


def environment(plan, **base):
    return plan.environment(
        base or {"PATH": "/bin"},
        tools=Path("/tools"),
        forwarding=Path("/forwarding"),
        include=[Path("/more")],
        library=Path("/library"),
        jobs=3,
    )


def test_the_key_names_all_that_a_wheel_depends_on(plan):
    soabi = sysconfig.get_config_var("SOABI")
    assert plan.key == f"horovod-0.28.1_tensorflow-2.21.0_{soabi}_avx_gcc-12.2.0_gloo"


def test_each_difference_is_another_key(plan):
    tensorflow = plan.tensorflow
    others = [
        dataclasses.replace(plan, tensorflow=dataclasses.replace(tensorflow, version="2.21.1")),
        dataclasses.replace(plan, tensorflow=dataclasses.replace(tensorflow, distribution="tensorflow-cpu")),
        dataclasses.replace(plan, compiler=Compiler(("g++",), "gcc", "13.1.0")),
        dataclasses.replace(plan, compiler=Compiler(("clang++",), "clang", "12.2.0")),
        dataclasses.replace(plan, mpi=Mpi("openmpi-4.1.4")),
        dataclasses.replace(plan, mpi=Mpi("openmpi-5.0.1")),
        dataclasses.replace(plan, nccl=NCCL),
        dataclasses.replace(plan, nccl=dataclasses.replace(NCCL, cuda="13.0")),
        dataclasses.replace(plan, processor=("avx", "f16c")),
        dataclasses.replace(plan, variables=(("HOROVOD_DEBUG", "1"),)),
        dataclasses.replace(plan, variables=(("HOROVOD_DEBUG", "0"),)),
    ]
    keys = {other.key for other in [plan, *others]}
    assert len(keys) == 1 + len(others)
    assert all(re.fullmatch(r"[\w.+-]+", key) for key in keys), "fit for a folder's name"


def test_the_place_of_tensorflow_is_no_difference(plan):
    elsewhere = dataclasses.replace(plan.tensorflow, folder=Path("/elsewhere/tensorflow"))
    assert dataclasses.replace(plan, tensorflow=elsewhere).key == plan.key


def test_the_user_s_settings_are_a_part_of_the_key(plan, monkeypatch):
    def here():
        return BuildPlan.here(plan.tensorflow, plan.compiler, None, None)

    plain = here()
    monkeypatch.setenv("HOROVOD_RANK", "3")  # a setting of running, not of building
    assert here().key == plain.key
    monkeypatch.setenv("HOROVOD_CPU_OPERATIONS", "GLOO")
    assert here().variables == (("HOROVOD_CPU_OPERATIONS", "GLOO"),)
    assert here().key != plain.key


def test_the_build_is_told_what_to_build(plan):
    told = environment(plan)
    assert told["HOROVOD_WITH_TENSORFLOW"] == told["HOROVOD_WITH_GLOO"] == told["HOROVOD_WITHOUT_MPI"] == "1"
    assert told["HOROVOD_WITHOUT_PYTORCH"] == told["HOROVOD_WITHOUT_MXNET"] == "1"
    assert told["CXX"] == "g++"
    assert told["CXXFLAGS"] == "-iquote/forwarding -I/more"
    assert told["MAKEFLAGS"] == "-j3"
    assert told["PATH"] == f"/tools/bin{os.pathsep}/bin"
    assert told["PYTHONPATH"] == "/tools"
    assert told["HOROVOD_BUILD_ARCH_FLAGS"] == "-mavx"


def test_the_user_s_own_settings_are_kept(plan):
    told = environment(plan, CXXFLAGS="-g0 -I/mine", PYTHONPATH="/mine", HOROVOD_BUILD_ARCH_FLAGS="-mavx512f")
    assert told["CXXFLAGS"] == "-iquote/forwarding -I/more -g0 -I/mine"
    assert told["PYTHONPATH"] == f"/tools{os.pathsep}/mine"
    assert told["HOROVOD_BUILD_ARCH_FLAGS"] == "-mavx512f"


def test_a_surrounding_make_s_jobs_are_not_inherited(plan):
    assert environment(plan, MAKEFLAGS="-j8 --jobserver-auth=3,4")["MAKEFLAGS"] == "-j3"


def test_mpi_is_asked_for(plan):
    told = environment(dataclasses.replace(plan, mpi=Mpi("openmpi-4.1.4")))
    assert told["HOROVOD_WITH_MPI"] == "1"
    assert "HOROVOD_WITHOUT_MPI" not in told


def test_an_mpi_of_pip_is_put_on_the_path_last(plan):
    told = environment(dataclasses.replace(plan, mpi=Mpi("mpich-5.0.2", Path("/env/bin"))), PATH="/usr/bin")
    assert told["PATH"] == "/tools/bin:/usr/bin:/env/bin"


def test_nccl_of_pip_is_linked_by_a_name_of_ours_and_found_beside_tensorflow(plan):
    told = environment(dataclasses.replace(plan, nccl=NCCL), LDFLAGS="-Wl,-O1")
    assert told["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert told["HOROVOD_NCCL_INCLUDE"] == "/site/nvidia/nccl/include"
    assert told["HOROVOD_NCCL_LIB"] == "/library"
    assert told["LDFLAGS"] == "-Wl,-O1 -Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"


def test_nccl_of_the_system_is_linked_where_it_lies(plan):
    nccl = dataclasses.replace(NCCL, library=Path("/usr/lib/libnccl.so"), from_pip=False)
    told = environment(dataclasses.replace(plan, nccl=nccl))
    assert told["HOROVOD_NCCL_LIB"] == "/usr/lib"
    assert told["HOROVOD_CUDA_HOME"] == "/usr/local/cuda"
    assert "LDFLAGS" not in told
