"""What is read of XLA's text, from lines as XLA writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfperf.errors import HardwareError
from tfperf.hardware.counting.hlo_text import Array, read_program

TEXT = """
HloModule a_inference_f_1, entry_computation_layout={(f32[4,8]{1,0}, /*index=1*/f32[8,2]{1,0})->f32[4,2]{1,0}}

%add_F32.1 (lhs.1: f32[], rhs.1: f32[]) -> f32[] {
  %lhs.1 = f32[] parameter(0)
  %rhs.1 = f32[] parameter(1)
  ROOT %add.9 = f32[] add(f32[] %lhs.1, f32[] %rhs.1)
}

ENTRY %a_inference_f_1 (arg0.1: f32[4,8], arg1.1: f32[8,2]) -> f32[4,2] {
  %arg0.1 = f32[4,8]{1,0} parameter(0), parameter_replication={false}, metadata={op_name="XLA_Args"}
  %arg1.1 = f32[8,2]{1,0} parameter(1), metadata={op_name="XLA_Args"}
  %dot.3 = f32[4,2]{1,0} dot(f32[4,8]{1,0} %arg0.1, /*index=1*/f32[8,2]{1,0} %arg1.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}, metadata={op_type="MatMul" op_name="net_1/dense_1/MatMul" source_file="a, b(c).py"}
  %zero.4 = bf16[] constant(0)
  %pair.5 = (f32[4,2]{1,0}, s32[3]{0}) custom-call(f32[4,2]{1,0} %dot.3), custom_call_target="top(k)"
  ROOT %out.6 = f32[4,2]{1,0} get-tuple-element((f32[4,2]{1,0}, s32[3]{0}) %pair.5), index=0
}
"""


def test_a_program_is_read():
    program = read_program(TEXT)
    assert program.entry == "a_inference_f_1"
    assert [one.opcode for one in program.computations["add_F32.1"]] == ["parameter", "parameter", "add"]
    left, right, dot, zero, pair, out = program.computations[program.entry]
    assert (dot.name, dot.opcode, dot.operands) == ("dot.3", "dot", ("arg0.1", "arg1.1"))
    assert dot.arrays == (Array("f32", (4, 2)),)
    assert dot.op_name == "net_1/dense_1/MatMul"
    assert dot.attribute("lhs_contracting_dims") == "{1}"
    assert dot.numbers("rhs_contracting_dims") == (0,)
    assert dot.attribute("window") is None
    assert dot.numbers("window") == ()
    assert (left.bytes, right.bytes, zero.bytes) == (4 * 4 * 8, 4 * 8 * 2, 2)
    assert pair.arrays == (Array("f32", (4, 2)), Array("s32", (3,)))
    assert pair.operands == ("dot.3",)
    assert (out.is_root, out.op_name, out.operands) == (True, "", ("pair.5",))


@pytest.mark.parametrize(
    ("kind", "size"),
    [("pred", 1), ("s4", 1), ("f8e4m3fn", 1), ("bf16", 2), ("f16", 2), ("u32", 4), ("c64", 8), ("token", 0)],
)
def test_the_bytes_of_a_type(kind, size):
    text = TEXT.replace("%zero.4 = bf16[] constant(0)", f"%zero.4 = {kind}[5,3] constant(0)")
    program = read_program(text)
    (zero,) = (one for one in program.computations[program.entry] if one.name == "zero.4")
    assert zero.bytes == 15 * size


@given(st.text(max_size=200))
def test_what_is_no_program_is_refused_in_a_line(text):
    if "ENTRY" in text:
        return
    with pytest.raises(HardwareError, match="expected the text of an XLA program, with an ENTRY") as told:
        read_program(text)
    assert "\n" not in str(told.value)
