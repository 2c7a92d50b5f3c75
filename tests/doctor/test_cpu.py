"""What the CPU's instructions mean for each number format."""

import pytest

from tfperf.doctor import State, cpu
from tfperf.measure.environment import ARITHMETIC


def test_every_format_is_told_of():
    assert [form.name for form in cpu.FORMATS] == list(ARITHMETIC)


def states(environment, *features):
    findings = cpu.look(environment.model_copy(update={"cpu_features": features}))
    return {finding.subject.removeprefix("CPU "): finding.state for finding in findings[1:]}


@pytest.mark.parametrize(
    ("features", "has"),
    [
        (("avx2",), {"float32"}),
        (("avx2", "avx512f", "avx512_bf16", "avx512_vnni"), {"float32", "bfloat16", "int8"}),
        (("avx512f", "amx_bf16", "amx_fp16", "amx_int8"), {"float32", "bfloat16", "float16", "int8"}),
        (("asimd", "asimdhp", "bf16", "i8mm"), {"float32", "bfloat16", "float16", "int8"}),
        (("amx_tile",), set()),
    ],
)
def test_a_format_without_instructions_is_a_note(environment, features, has):
    expected = {name: State.OK if name in has else State.NOTE for name in ("float32", "bfloat16", "float16", "int8")}
    assert states(environment, *features) == expected


def test_what_16_bits_buy_is_to_be_measured_either_way(environment):
    for features in (("avx2",), ("avx512_bf16", "avx512_fp16")):
        findings = cpu.look(environment.model_copy(update={"cpu_features": features}))
        told = {finding.subject: finding.found for finding in findings}
        for name in ("CPU bfloat16", "CPU float16"):
            assert "tfperf run mnist_mixed_mirrored" in told[name]
    assert (
        "convert to float32 and back" in cpu.look(environment.model_copy(update={"cpu_features": ("avx2",)}))[2].found
    )


def test_a_system_that_does_not_tell_is_not_taken_for_a_cpu_that_lacks_all(environment):
    assert list(states(environment)) == ["instructions"]


def test_the_cpu_is_named(environment):
    cpu_named = environment.model_copy(update={"cpu": "[red]CPU", "hypervisor": True})
    assert cpu.look(cpu_named)[0].found == "[red]CPU, in a virtual machine"
    assert cpu.look(cpu_named.model_copy(update={"hypervisor": False}))[0].found == "[red]CPU"
