"""What is recorded of the machine, and how quiet it was."""

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from tfperf.measure import environment as module
from tfperf.measure.environment import ARITHMETIC, CPU_FEATURES, VARIABLE_PREFIXES, Environment, Watch
from tfperf.measure.results import Result, read_result, write_result

git_revision = module._git_revision.__wrapped__  # without its cache, and before conftest.py replaces it


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with one commit, untouched by the settings of whoever runs the tests."""
    for variable in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    (tmp_path / "file.txt").write_text("one\n")
    who = ["-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"]
    for arguments in (["init", "-q"], ["add", "file.txt"], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_here_knows_this_machine() -> None:
    here = Environment.here()
    assert here.cpu
    assert 1 <= here.usable_cores <= here.logical_cores
    assert here.memory_bytes > 2**28
    assert {"numpy", "scipy", "tensorflow"} <= here.packages.keys()


def test_the_instructions_for_a_number_format_are_among_those_that_are_read(environment) -> None:
    assert {one for names in ARITHMETIC.values() for one in names} <= set(CPU_FEATURES)
    has = environment.model_copy(update={"cpu_features": ("avx2", "amx_bf16", "avx512_bf16"), "accelerators": ()})
    assert has.instructions_for("bfloat16") == ("avx512_bf16", "amx_bf16")
    assert not has.instructions_for("float16")
    assert not has.computes_float16
    assert has.model_copy(update={"accelerators": ("NVIDIA H100",)}).computes_float16
    assert has.model_copy(update={"cpu_features": ("asimdhp",)}).computes_float16


def test_only_variables_that_change_the_speed_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in (
        "AWS_SECRET_ACCESS_KEY",
        "TF_TOKEN",
        "GITHUB_TOKEN",
        "PASSWORD",
        "OMPI_SECRET",
        "_HOROVOD_SECRET_KEY",
    ):
        monkeypatch.setenv(secret, "do not tell")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2")
    variables = Environment.here().variables
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["TF_XLA_FLAGS"] == "--tf_xla_auto_jit=2"
    assert all(name.startswith(VARIABLE_PREFIXES) for name in variables)
    assert "do not tell" not in variables.values()


@pytest.mark.parametrize("value", [b"\xff\xfe", b"\x1b[2J"])
def test_a_variable_that_is_no_text_does_not_break_the_result(monkeypatch, tmp_path: Path, value: bytes) -> None:
    monkeypatch.setitem(os.environb, b"OMP_DISPLAY_ENV", value)
    write_result(tmp_path / "r.json", Result(name="here", environment=Environment.here()))
    recorded = read_result(tmp_path / "r.json").environment.variables["OMP_DISPLAY_ENV"]
    assert recorded.isprintable()


def test_revision_has_a_plus_when_files_are_changed(repository: Path) -> None:
    clean = git_revision(repository)
    assert len(clean) == 12
    assert int(clean, 16) >= 0
    (repository / "new.txt").write_text("untracked files are not part of it")
    assert git_revision(repository) == clean
    (repository / "file.txt").write_text("two\n")
    assert git_revision(repository) == clean + "+"


def test_no_repository_has_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_revision(tmp_path) is None


def test_no_git_no_revision(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert git_revision(repository) is None


def test_differences_are_those_that_can_change_a_speed(environment: Environment) -> None:
    assert environment.differences(environment) == []
    other = environment.model_copy(
        update={
            "usable_cores": 2,
            "packages": {"numpy": "2.5.0"},
            "variables": {"OMP_NUM_THREADS": "1"},
            "git_revision": "abc",
        }
    )
    assert environment.differences(other) == [
        "OMP_NUM_THREADS: None and 1",
        "numpy: 2.4.0 and 2.5.0",
        "usable cores: 4 and 2",
    ]


# ---------------------------------------------------------------- conditions

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch):
    """The conditions when the machine's counters and this process's own time have risen by so much."""

    def run(own: float = 0.0, **passed: float):
        start = Times(100.0, 1.0, 50.0, 1000.0, 10.0, 1.0, 1.0, 5.0, 0.0, 0.0)
        end = start._replace(**{field: getattr(start, field) + seconds for field, seconds in passed.items()})
        readings, own_readings = iter([start, end]), iter([7.0, 7.0 + own])
        monkeypatch.setattr(module.psutil, "cpu_times", lambda: next(readings))
        monkeypatch.setattr(module, "_own_cpu_seconds", lambda: next(own_readings))
        return Watch().conditions()

    return run


def test_steal_is_the_hypervisors_share(watched) -> None:
    conditions = watched(own=10.0, user=10.0, idle=85.0, steal=5.0)
    assert conditions.steal_share == pytest.approx(0.05)
    assert conditions.busy_elsewhere_share == 0.0


def test_busy_elsewhere_is_what_others_took(watched) -> None:
    conditions = watched(own=10.0, user=25.0, system=4.0, softirq=1.0, idle=65.0, iowait=5.0)
    assert conditions.busy_elsewhere_share == pytest.approx(0.20)
    assert conditions.steal_share == 0.0


def test_time_of_guests_is_not_counted_twice(watched) -> None:
    conditions = watched(user=20.0, guest=20.0, idle=80.0)
    assert conditions.busy_elsewhere_share == pytest.approx(0.20)


def test_counters_that_stand_or_fall_are_no_error(watched) -> None:
    assert watched().busy_elsewhere_share == 0.0
    assert watched(own=50.0, user=1.0, iowait=-3.0, idle=1.0).busy_elsewhere_share == 0.0
    assert watched(steal=10.0).steal_share == 1.0


def test_the_load_is_that_from_before(watched, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([(2.5, 0, 0), (9.0, 0, 0)])
    monkeypatch.setattr(module.os, "getloadavg", lambda: next(loads))
    assert watched(idle=1.0).load_before == 2.5


BUSY = """
import sys, time
while time.process_time() < 0.3:
    pass
print("done", flush=True)
sys.stdin.read()
"""

STARTING_ANOTHER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-S", "-c", sys.argv[1]])
"""


def test_the_work_of_those_it_started_is_its_own() -> None:
    """That of a child and of a grandchild while they live, and that of the child when it has ended."""
    before = module._own_cpu_seconds()
    command = [sys.executable, "-S", "-c", STARTING_ANOTHER + BUSY, BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert [child.stdout.readline() for _ in range(2)] == ["done\n"] * 2
        assert module._own_cpu_seconds() - before > 0.5
        child.stdin.close()
        child.wait(30)
    assert module._own_cpu_seconds() - before > 0.25


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ({"model name": "AMD EPYC", "vendor_id": "AuthenticAMD", "cpu family": "25", "model": "1"}, "epyc-zen3-2"),
        ({"model name": "AMD EPYC 9654 96-Core Processor", "vendor_id": "AuthenticAMD", "cpu family": "25",
          "model": "17"}, "epyc-9654-zen4-2"),
        ({"model name": "AMD EPYC", "vendor_id": "AuthenticAMD", "cpu family": "26", "model": "2"}, "epyc-zen5-2"),
        ({"model name": "AMD EPYC", "vendor_id": "AuthenticAMD", "cpu family": "99", "model": "2"}, "epyc-2"),
        ({"model name": "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz", "vendor_id": "GenuineIntel"},
         "xeon-platinum-8488c-2"),
        ({"model name": "Intel(R) Xeon(R) Processor", "vendor_id": "GenuineIntel", "flags": "avx2 avx512f amx_tile"},
         "xeon-amx-2"),
        ({"model name": "Intel(R) Xeon(R) CPU @ 2.20GHz", "vendor_id": "GenuineIntel", "flags": "avx2 avx512f"},
         "xeon-avx512-2"),
    ],
)  # fmt: skip
def test_a_machine_has_a_short_name(monkeypatch, lines, name, tmp_path):
    description = tmp_path / "cpuinfo"
    description.write_text("\n".join(f"{heading}\t: {words}" for heading, words in lines.items()))
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    assert module.machine_name(description) == name
