"""What engines must know of a processor."""

import numpy as np
import pytest

from tfperf.engines.processor import saturates_int8


@pytest.mark.parametrize(
    ("words", "saturates"),
    [
        ("flags\t\t: lm avx2", True),
        ("flags\t\t: lm avx2 avx512bw avx512vl", True),
        ("flags\t\t: lm avx2 avx_vnni", False),
        ("flags\t\t: lm avx2 avx512bw avx512_vnni", False),
        ("Features\t: fp asimd asimddp", False),
    ],
)
def test_8_bit_products_are_cut_off_before_vnni(words, saturates, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\n{words}\nbugs\t\t: avx512_vnni\n")
    assert saturates_int8(file) is saturates


def test_with_weights_of_7_bits_no_sum_of_two_products_is_cut_off():
    most = np.iinfo(np.int16).max
    assert 2 * 255 * 64 <= most < 2 * 255 * 127
