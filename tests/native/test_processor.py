"""What a processor has, from Linux's description of it."""

from tfperf.native.processor import flags_of_cpu, level_of_cpu


def test_flags_are_those_of_the_first_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    assert flags_of_cpu(file) == frozenset()
    file.write_text("flags\t\t: lm avx2\nbugs\t\t: spectre\nflags\t\t: lm\n")
    assert flags_of_cpu(file) == {"lm", "avx2"}


def test_a_processor_of_another_kind_has_no_level(tmp_path):
    file = tmp_path / "cpuinfo"
    assert level_of_cpu(file) is None
    file.write_text("Features\t: fp asimd asimddp\n")
    assert level_of_cpu(file) is None
    file.write_text("flags\t\t: lm sse2\n")
    assert level_of_cpu(file) == "x86-64"
