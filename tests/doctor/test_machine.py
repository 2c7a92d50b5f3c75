"""Number formats, cores, memory, load, steal, governor and disk: what is told, and from when on it is noted."""

import shutil
from collections import namedtuple

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.doctor import State, machine
from tfperf.measure import Conditions, Environment, memory
from tfperf.measure.doubts import MOST_BUSY_ELSEWHERE, MOST_STEAL, SLOW_GOVERNORS
from tfperf.measure.environment import ARITHMETIC

GIB = 2**30
Memory = namedtuple("Memory", "total available")
Usage = namedtuple("Usage", "total used free")


def conditions(load=0.0, steal=0.0):
    return Conditions(load_before=load, steal_share=steal, busy_elsewhere_share=0.0, seconds=1.0)


def test_this_machine_is_looked_at_for_a_second_while_tensorflow_loads():
    slept = []
    findings = machine.examine_machine(slept.append)
    assert slept == [machine.WATCH_S]
    assert [finding.subject for finding in findings] == [
        "cores", "memory", "load", "steal", "frequency governor", "disk for results", "disk for data sets",
        "cache",
    ]  # fmt: skip
    assert {finding.state for finding in findings} <= {State.OK, State.NOTE}


@pytest.mark.parametrize(("usable", "state"), [(2, State.NOTE), (8, State.OK)])
def test_cores_kept_away_are_a_note(environment: Environment, usable, state):
    finding = machine._cores(environment.model_copy(update={"usable_cores": usable, "logical_cores": 8}))
    assert finding.state is state
    assert "8" in finding.found


def test_load_and_steal_are_noted_from_where_measurements_would_be_doubted():
    for share, state in ((MOST_BUSY_ELSEWHERE, State.OK), (MOST_BUSY_ELSEWHERE + 0.01, State.NOTE)):
        assert machine._load(conditions(load=4 * share), cores=4).state is state
    for share, state in ((MOST_STEAL, State.OK), (MOST_STEAL + 0.01, State.NOTE)):
        assert machine._steal(conditions(steal=share)).state is state


@pytest.mark.parametrize("governor", [None, "performance", *SLOW_GOVERNORS, "[bold]"])
def test_a_governor_that_changes_the_clock_is_noted(environment, governor):
    finding = machine._governor(environment.model_copy(update={"frequency_governor": governor}))
    assert (finding.state is State.NOTE) == (governor is None or governor in SLOW_GOVERNORS)
    assert bool(finding.mend) == (governor in SLOW_GOVERNORS)


@pytest.mark.parametrize(
    ("available", "limit", "state"),
    [
        (8 * GIB, None, State.OK),
        (1 * GIB, None, State.NOTE),
        (8 * GIB, (4 * GIB, 1 * GIB), State.OK),
        (8 * GIB, (4 * GIB, 3 * GIB), State.NOTE),
        (8 * GIB, (4 * GIB, 5 * GIB), State.NOTE),
        (8 * GIB, (64 * GIB, 8 * GIB), State.OK),  # wider than the machine
    ],
)
def test_memory_is_what_the_machine_and_the_control_group_leave(monkeypatch, available, limit, state):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(16 * GIB, available))
    monkeypatch.setattr(memory, "memory_limits", lambda: [] if limit is None else [memory.MemoryLimit(*limit)])
    finding = machine._memory()
    assert finding.state is state
    assert ("control group may use 4 GiB" in finding.found) == (limit is not None and limit[0] == 4 * GIB)


@pytest.mark.parametrize(("free", "state"), [(GIB // 2, State.NOTE), (2 * GIB, State.OK)])
def test_a_full_disk_is_noted_where_the_folder_would_be_made(monkeypatch, tmp_path, free, state):
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or Usage(3 * GIB, 0, free))
    assert machine._disk("disk", tmp_path / "not" / "yet").state is state
    assert asked == [tmp_path]


def test_a_folder_that_may_not_be_written_is_noted(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    finding = machine._disk("disk", tmp_path / "[bold]")
    assert finding.state is State.NOTE
    assert "may not be written" in finding.found


# ---------------------------------------------------------------- the cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TFPERF_CACHE_GIB", raising=False)
    return tmp_path / "cache"


def test_the_size_of_the_cache_is_told_and_nothing_is_made(cache, monkeypatch):
    assert machine._cache(cache) == machine.Finding(
        "cache", State.OK, f"0 B of at most 8 GiB (TFPERF_CACHE_GIB) in {cache}"
    )
    assert not cache.exists()
    (cache / "engines" / "a").mkdir(parents=True, mode=0o755)
    (cache / "engines" / "a" / "file").write_bytes(b"x" * 2048)
    assert machine._cache(cache).found.startswith("2 KiB of at most 8 GiB")
    monkeypatch.setenv("TFPERF_CACHE_GIB", "0")
    finding = machine._cache(cache)
    assert (finding.state, "the next net is converted" in finding.found) == (State.NOTE, True)


def test_a_cache_that_others_may_write_and_a_bound_that_is_no_number_are_noted(cache, monkeypatch):
    (cache / "engines").mkdir(parents=True)
    cache.chmod(0o755)
    (cache / "engines").chmod(0o777)
    finding = machine._cache(cache)
    assert finding.state is State.NOTE
    assert f"chmod -R go-w {cache}" in finding.found
    monkeypatch.setenv("TFPERF_CACHE_GIB", "much")
    findings = {finding.subject: finding for finding in machine.examine_machine(lambda _: None)}
    assert findings["cache"].state is State.NOTE
    assert "TFPERF_CACHE_GIB" in findings["cache"].found


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 100))
def test_any_conditions_can_be_told(steal, load):
    for finding in (machine._steal(conditions(steal=steal)), machine._load(conditions(load=load), cores=2)):
        assert finding.state in (State.OK, State.NOTE)


# ---------------------------------------------------------------- the CPU


def test_every_format_is_told_of():
    assert list(machine.FORMATS) == list(ARITHMETIC)


def states(environment, *features):
    findings = machine.examine_cpu(environment.model_copy(update={"cpu_features": features}))
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
    for features, words in (
        (("avx2",), "convert to float32 and back"),
        (("avx512_bf16", "avx512_fp16"), "instructions"),
    ):
        findings = machine.examine_cpu(environment.model_copy(update={"cpu_features": features}))
        told = {finding.subject: finding.found for finding in findings}
        for name in ("CPU bfloat16", "CPU float16"):
            assert "tfperf run mnist_mixed_mirrored" in told[name]
            assert words in told[name]


def test_a_system_that_does_not_tell_is_not_taken_for_a_cpu_that_lacks_all(environment):
    assert list(states(environment)) == ["instructions"]


def test_the_cpu_is_named(environment):
    cpu_named = environment.model_copy(update={"cpu": "[red]CPU", "hypervisor": True})
    assert machine.examine_cpu(cpu_named)[0].found == "[red]CPU, in a virtual machine"
    assert machine.examine_cpu(cpu_named.model_copy(update={"hypervisor": False}))[0].found == "[red]CPU"
