"""Which unit multiplies which number format, on machines that are made up and on this machine."""

import pytest

from tfperf.hardware import MatrixUnit, matrix_unit
from tfperf.hardware.matrix_units import CPU_UNITS
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
