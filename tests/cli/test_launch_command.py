"""`tfperf launch`: its options, and bad input. What it starts is tested in tests/parallel/launch."""

import subprocess
import sys

import pytest


def test_help(tfperf_command):
    result = tfperf_command("launch", "--help")
    assert result.returncode == 0
    for option in ("-np", "--hosts", "--threads", "--stall-limit", "--min-np", "--tf-config", "--network-interfaces"):
        assert option in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-np", "2"], "Missing argument"),
        (["python", "x.py"], "-np N"),
        (["-np", "0", "true"], "-np"),
        (["-np", "x", "true"], "-np"),
        (["-np", "2", "--nonsense", "true"], "--nonsense"),
        (["-np", "2", "--threads", "0", "true"], "--threads"),
        (["-H", "nonsense", "true"], "name:slots"),
        (["-H", "a:1", "--hostfile", "x", "true"], "one of"),
        (["--hostfile", "missing", "true"], "missing"),
        (["-np", "2", "--tf-config", "65536", "true"], "--tf-config"),
        (["-np", "3", "--parameter-servers", "1", "true"], "--tf-config PORT"),
        (["-np", "2", "--export", "NO_SUCH_VARIABLE", "true"], "Received: NO_SUCH_VARIABLE"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tfperf_command, arguments, words):
    result = tfperf_command("launch", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("tfperf: ")
    assert words in result.stderr


def test_without_horovod_it_says_how_to_get_it():
    code = "import sys, tfperf.cli as cli; sys.modules['horovod'] = None; cli.main(['launch', '-np', '1', 'true'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == "tfperf: Horovod is not installed; run `tfperf horovod install`\n"


def test_importing_the_launcher_loads_neither_tensorflow_nor_horovod():
    code = "import sys, tfperf.parallel.launch; sys.exit(bool({'tensorflow', 'horovod', 'numpy'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


KUBERNETES = ["--manifest", "kubernetes", "--image", "example/train:1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--manifest", "nomad", "--image", "i", "-np", "2"], "expected --manifest kubernetes. Received: nomad"),
        (["--manifest", "kubernetes", "-np", "2"], "--image IMAGE"),
        ([*KUBERNETES], "-np N"),
        ([*KUBERNETES, "-np", "3", "--slots-per-worker", "2"], "multiple of --slots-per-worker 2"),
        ([*KUBERNETES, "-H", "a:1"], "--manifest without --hosts"),
        ([*KUBERNETES, "-np", "2", "--min-np", "1"], "--manifest without --min-np"),
        ([*KUBERNETES, "-np", "2", "--mpi"], "--manifest without --mpi"),
        (["-np", "2", "--image", "i"], "with --manifest"),
        (["-np", "2", "--gpus"], "with --manifest"),
        (["-np", "2", "--slots-per-worker", "1"], "with --manifest"),
    ],
)
def test_a_manifest_that_cannot_be_is_one_line_and_2(tfperf_command, arguments, words):
    result = tfperf_command("launch", *arguments, "python", "train.py")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert words in line


def test_a_manifest_is_yaml_and_starts_nothing(tfperf_command, tmp_path):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which Horovod brings")
    options = [
        "--tf-config",
        "2222",
        "--stall-limit",
        "900",
        "--verbose",
        "--network-interfaces",
        "net1",
        "-x",
        "A",
        "-x",
        "B",
    ]
    result = tfperf_command("launch", *KUBERNETES, "-np", "2", *options, "touch", tmp_path / "started")
    assert (result.returncode, result.stderr) == (0, "")
    replicas = yaml.safe_load(result.stdout)["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    words = " ".join(launcher["command"])
    for part in (
        "-np 2 ",
        "--tf-config 2222 ",
        "--stall-limit 900 ",
        "--verbose ",
        "--network-interfaces net1 ",
        "--export A --export B ",
    ):
        assert part in words
    assert not (tmp_path / "started").exists()


SHOW = "import os, sys; print(sys.argv[1:], *(os.environ.get(name) for name in {names}), sep='|')"


@pytest.fixture
def launched(tfperf_command):
    """A function that launches one rank which prints its arguments and some of its variables, split at |."""
    pytest.importorskip("horovod", reason="needs Horovod")

    def launched(*options, show=(), flags=()):
        result = tfperf_command("launch", *options, "python", "-c", SHOW.format(names=tuple(show)), *flags)
        assert result.returncode == 0, result.stderr
        return result.stdout.rstrip("\n").split("|")

    return launched


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_the_commands_flags_are_its_own(launched, separator):
    flags = ["--threads", "9", "-np", "3", "-h"]
    assert launched("-np", "1", *separator, flags=flags) == [str(flags)]


def test_options_reach_the_ranks(launched):
    options = {"--threads": 3, "--stall-warning": 5, "--stall-limit": 6, "--start-timeout": 7}
    names = ["TF_NUM_INTRAOP_THREADS", "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]
    arguments = [str(word) for option in options.items() for word in option]
    shown = launched("-np", "1", *arguments, show=[*names, "HOROVOD_GLOO_TIMEOUT_SECONDS"])
    assert shown[1:] == ["3", "5", "6", "7"]


def test_the_log_is_quiet_unless_the_user_says_otherwise(launched, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    assert launched("-np", "1", show=["TF_CPP_MIN_LOG_LEVEL"])[1] == "2"
    assert launched("-np", "1", "--verbose", show=["TF_CPP_MIN_LOG_LEVEL"])[1] == "None"
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    assert launched("-np", "1", show=["TF_CPP_MIN_LOG_LEVEL"])[1] == "0"


def test_a_failing_rank_is_one_line_and_its_exit_code(tfperf_command):
    pytest.importorskip("horovod", reason="needs Horovod")
    result = tfperf_command("launch", "-np", "2", "sh", "-c", "exit 3")
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1].startswith("tfperf launch: rank ")
    assert len(result.stderr.splitlines()) == 1


def test_a_command_that_is_not_found_is_one_line_and_2(tfperf_command):
    pytest.importorskip("horovod", reason="needs Horovod")
    result = tfperf_command("launch", "-np", "2", "no-such-command-at-all")
    assert result.returncode == 2
    assert result.stderr.startswith("tfperf: expected a command")
    assert len(result.stderr.splitlines()) == 1


def test_verbose_tells_what_is_started(tfperf_command):
    pytest.importorskip("horovod", reason="needs Horovod")
    result = tfperf_command("launch", "-np", "2", "--verbose", "true")
    assert "2 ranks on localhost:2" in result.stderr
    assert "127.0.0.1" in result.stderr
