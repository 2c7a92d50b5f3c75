"""Which unit multiplies which number format, on machines that are made up and on this machine."""

import pytest

from tfperf.hardware import MatrixUnit, matrix_unit
from tfperf.hardware.processor import CPU_UNITS, Cache, data_caches
from tfperf.measure import Environment
from tfperf.measure.environment import ARITHMETIC


def cpu(*features):
    return Environment.here().model_copy(update={"cpu_features": features})


@pytest.mark.parametrize(
    ("features", "number_format", "unit"),
    [
        (("avx2", "avx512f"), "float32", MatrixUnit("AVX-512", 1)),
        (("avx2",), "float32", MatrixUnit("AVX2", 1)),
        (("avx2", "avx512f"), "bfloat16", None),
        (("avx512f", "avx512_bf16", "amx_bf16"), "bfloat16", MatrixUnit("AMX", 16)),
        (("avx512f", "avx512_bf16"), "bfloat16", MatrixUnit("AVX-512 BF16", 2)),
        (("avx512f", "avx512_bf16"), "float16", None),
        (("avx2", "avx_vnni"), "int8", MatrixUnit("AVX-VNNI", 4)),
        (("asimd", "i8mm"), "int8", MatrixUnit("SMMLA", 8)),
        (("avx512f", "amx_bf16"), "TF32", None),  # a format of GPUs
        ((), "float32", None),
    ],
)
def test_a_cpu_has_the_fastest_unit_of_its_features(features, number_format, unit):
    assert matrix_unit(number_format, environment=cpu(*features)) == unit


@pytest.mark.parametrize(
    ("capability", "served"),
    [
        ((6, 1), {"float32"}),
        ((7, 0), {"float32", "float16"}),
        ((7, 5), {"float32", "float16", "int8"}),
        ((8, 0), {"float32", "float16", "int8", "bfloat16", "TF32"}),
        ((10, 0), {"float32", "float16", "int8", "bfloat16", "TF32"}),
    ],
)
def test_tensor_cores_take_more_formats_from_one_generation_to_the_next(capability, served):
    units = {name: matrix_unit(name, compute_capability=capability) for name in (*CPU_UNITS, "TF32")}
    assert {name for name, unit in units.items() if unit} == served
    assert units["float32"].name == "CUDA cores"
    assert {unit.name for name, unit in units.items() if unit and name != "float32"} <= {"tensor cores"}


def test_the_units_are_those_whose_features_are_recorded():
    assert {name: set(units) for name, units in CPU_UNITS.items()} == {
        name: set(features) for name, features in ARITHMETIC.items()
    }


def test_a_format_has_no_unit_where_nothing_here_computes_in_it():
    here = Environment.here()
    for name in CPU_UNITS:
        assert (matrix_unit(name, environment=here) is None) == (not here.instructions_for(name))


def test_this_machine_multiplies_float32():
    assert matrix_unit("float32") is not None


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match=r"expected a number format of float32, .*Received: float64"):
        matrix_unit("float64")


# ---------------------------------------------------------------- caches


@pytest.fixture
def told(tmp_path):
    """A function that has the system tell of a cache."""

    def told(index, **facts):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in facts.items():
            (folder / name).write_text(f"{value}\n")

    return told


def test_caches_for_data_the_nearest_first(told, tmp_path):
    told(3, type="Unified", level=3, size="32768K", coherency_line_size=64, shared_cpu_list="0-3,8-11")
    told(0, type="Data", level=1, size="48K", coherency_line_size=64, shared_cpu_list="0")
    told(1, type="Instruction", level=1, size="32K", coherency_line_size=64, shared_cpu_list="0")
    told(2, type="Unified", level=2, size="1M", coherency_line_size=128, shared_cpu_list="0,8")
    assert data_caches(tmp_path) == (
        Cache(level=1, size=48 * 2**10, line=64, shared_by=1),
        Cache(level=2, size=2**20, line=128, shared_by=2),
        Cache(level=3, size=32 * 2**20, line=64, shared_by=8),
    )
    assert data_caches(tmp_path)[0].name == "L1"


def test_what_the_system_does_not_tell_is_left_out(told, tmp_path):
    told(0, type="Data", level=1, size="", coherency_line_size=64, shared_cpu_list="0")
    told(1, type="Data", level=1)
    assert data_caches(tmp_path) == ()
    assert data_caches(tmp_path / "none") == ()
