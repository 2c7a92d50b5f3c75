"""What a processor has, from Linux's description of it."""

import numpy as np
import pytest

from tfperf.native import processor
from tfperf.native.processor import (
    described,
    flags_of_cpu,
    has_amx,
    level_of_cpu,
    multiplies_pairs,
    saturates_int8,
)


def test_flags_are_those_of_the_first_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    assert flags_of_cpu(file) == frozenset()
    file.write_text("flags\t\t: lm avx2\nbugs\t\t: spectre\nflags\t\t: lm\n")
    assert flags_of_cpu(file) == {"lm", "avx2"}
    file.write_text("Features\t: fp asimd\n")
    assert flags_of_cpu(file) == {"fp", "asimd"}


def test_a_heading_is_a_whole_one_and_the_first(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_bytes(b"model name\t: AMD \xff\nmodel\t\t: 17\nmodel\t\t: 18\n")
    assert described("model", file) == "17"
    assert described("mode", file) == described("model", tmp_path) == ""


def test_a_processor_of_another_kind_has_no_level(tmp_path):
    file = tmp_path / "cpuinfo"
    assert level_of_cpu(file) is None
    file.write_text("Features\t: fp asimd asimddp\n")
    assert level_of_cpu(file) is None
    file.write_text("flags\t\t: lm sse2\n")
    assert level_of_cpu(file) == "x86-64"


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


@pytest.mark.parametrize(
    ("flags", "pairs", "amx"),
    [
        ({"avx512f"}, False, False),
        ({"avx512f", "avx512_bf16"}, True, False),
        ({"avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}, False, True),
    ],
)
def test_products_in_bfloat16_are_of_pairs_where_there_are_no_tiles(flags, pairs, amx, monkeypatch):
    monkeypatch.setattr(processor, "flags_of_cpu", lambda: frozenset(flags))
    has_amx.cache_clear()
    assert (multiplies_pairs(), has_amx()) == (pairs, amx)
    has_amx.cache_clear()


def test_with_weights_of_7_bits_no_sum_of_two_products_is_cut_off():
    most = np.iinfo(np.int16).max
    assert 2 * 255 * 64 <= most < 2 * 255 * 127
