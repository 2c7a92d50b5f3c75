"""What a launch gives its ranks, tells of them, and refuses; with ranks that do not load TensorFlow."""

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("horovod", reason="needs Horovod")

from tfperf.errors import HorovodError
from tfperf.parallel.launch import Job, launch, parse_hosts, static

TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], sys.executable, os.getcwd(), dict(os.environ)]))"


@pytest.fixture
def told(capfd):
    """A function that runs a job whose ranks tell what they were given: what each of them said, by its prefix."""

    def told(**options):
        assert launch(Job(command=["python", "-c", TELL, "--flag", "a b", "'$x'"], **options)) is None
        lines = capfd.readouterr().out.splitlines()
        return {prefix: json.loads(rest) for prefix, _, rest in (line.partition(" ") for line in sorted(lines))}

    return told


def test_ranks_get_the_command_the_folder_and_their_numbers(told):
    ranks = told(ranks=2)
    assert list(ranks) == ["[0]", "[1]"]
    for rank, (arguments, executable, folder, variables) in enumerate(ranks.values()):
        assert arguments == ["--flag", "a b", "'$x'"]
        assert Path(executable).parent == Path(sys.executable).parent
        assert folder == str(Path.cwd())
        assert variables["HOROVOD_RANK"] == variables["HOROVOD_LOCAL_RANK"] == str(rank)
        assert variables["HOROVOD_SIZE"] == variables["HOROVOD_LOCAL_SIZE"] == "2"
        assert variables["HOROVOD_CONTROLLER"] == "gloo"
        assert variables["HOROVOD_GLOO_IFACE"] == "lo"
        assert variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
        assert not {"HOROVOD_ELASTIC", "TF_CONFIG"} & variables.keys()


def test_ranks_on_names_of_this_machine_share_its_cores(told, monkeypatch):
    monkeypatch.setattr("tfperf.parallel.launch.environment.usable_cores", lambda: 12)
    ranks = told(hosts=parse_hosts("localhost:1,127.0.0.1:2"))
    hosts = [variables["HOROVOD_HOSTNAME"] for *_, variables in ranks.values()]
    assert hosts == ["localhost", "127.0.0.1", "127.0.0.1"]
    assert {variables["TF_NUM_INTRAOP_THREADS"] for *_, variables in ranks.values()} == {"4"}


def test_the_ranks_environment_is_the_jobs(told):
    ranks = told(ranks=2, environment={"MARK": "x", "PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    for *_, variables in ranks.values():
        assert variables["MARK"] == "x"
        assert "HOME" not in variables


def test_fewer_ranks_than_slots(told):
    assert list(told(ranks=2, hosts=parse_hosts("localhost:3"))) == ["[0]", "[1]"]


def test_a_single_rank_has_no_prefix(capfd):
    assert launch(Job(command=["echo", "words"], ranks=1)) is None
    assert capfd.readouterr().out == "words\n"


def test_ranks_get_tf_config_when_it_is_asked_for(told, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    ranks = told(ranks=2, tf_config_port=2222)
    configs = [json.loads(variables["TF_CONFIG"]) for *_, variables in ranks.values()]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert [config["cluster"] for config in configs] == [{"worker": ["localhost:2222", "localhost:2223"]}] * 2
    assert {variables["TF_NUM_INTEROP_THREADS"] for *_, variables in ranks.values()} == {"1"}


def test_the_chief_of_parameter_servers_ends_them(script, capfd):
    """And a worker has a thread to wait in for each of them."""
    show = "print(os.environ['TF_CONFIG'].split('task')[1], os.environ['TF_NUM_INTEROP_THREADS'], flush=True)"
    up = "if rank: open(sys.argv[1] + str(rank), 'w').close()"
    wait = (
        "while rank == 0 and not all(os.path.exists(sys.argv[1] + one) for one in '12'): time.sleep(0.01)\n"
        "if rank: signal.pause()"
    )
    path = script(f"{show}\n{up}\n{wait}\n")
    command = ["python", str(path), str(path.parent / "up")]
    assert launch(Job(command=command, ranks=3, threads=1, tf_config_port=2222, parameter_servers=1)) is None
    output = capfd.readouterr()
    shown = sorted(output.out.splitlines())
    assert [line.split()[2:] for line in shown] == [
        ['{"type":', f'"{role}",', '"index":', "0}}", "3"] for role in ("chief", "worker", "ps")
    ]
    assert "TensorFlow's servers listen on all interfaces, on ports 2222 to 2224" in output.err


def test_the_output_is_copied(tmp_path, capfd):
    command = ["sh", "-c", "echo out; echo err >&2"]
    assert launch(Job(command=command, ranks=11, output_folder=tmp_path / "new" / "logs")) is None
    names = sorted(path.name for path in (tmp_path / "new" / "logs").iterdir())
    assert names[:2] == ["rank.00", "rank.01"]
    assert len(names) == 11
    assert (tmp_path / "new" / "logs" / "rank.10" / "stdout").read_text() == "out\n"
    assert (tmp_path / "new" / "logs" / "rank.10" / "stderr").read_text() == "err\n"
    assert "[10] out\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("sys.exit(3)", 3, "rank 1 ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 1 was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "rank 1 was killed by SIGSEGV"),
    ],
)
def test_the_rank_that_fails_is_named_and_ends_the_others(script, program, code, words):
    path = script(f"if rank == 1:\n    {program}\nsignal.pause()\n")
    failure = launch(Job(command=["python", str(path)], ranks=3))
    assert failure.code == code
    assert failure.words == f"{words}; the other ranks were ended"


def test_a_single_rank_that_fails(script):
    failure = launch(Job(command=["python", str(script("sys.exit(4)"))], ranks=1))
    assert (failure.code, failure.words) == (4, "rank 0 ended with exit code 4")


BLAMING = """
pid_file = sys.argv[1]
if rank == 0:
    with open(pid_file + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(pid_file + ".part", pid_file)
    if sys.argv[2] == "early":
        sys.exit(0)
    print("UnknownError: Horovod has been shut down. This was caused by ...", file=sys.stderr)
    sys.exit(1)
while not os.path.exists(pid_file):
    time.sleep(0.01)
while os.path.exists("/proc/" + open(pid_file).read()):
    time.sleep(0.01)
if sys.argv[2] == "early":
    print("HorovodInternalError", file=sys.stderr)
    sys.exit(1)
sys.exit(7)
"""
"""Rank 0 is gone before rank 1 ends: as a victim of rank 1, or early and well."""


def test_the_cause_is_named_although_its_victim_ended_first(script, tmp_path, monkeypatch):
    monkeypatch.setattr(static, "PATIENCE", 60)  # a busy machine may be slow to end rank 1
    failure = launch(Job(command=["python", str(script(BLAMING)), str(tmp_path / "pid"), "fail"], ranks=2))
    assert (failure.code, failure.words) == (7, "rank 1 ended with exit code 7; the other ranks were ended")


def test_a_victim_of_a_rank_that_finished_early_says_so(script, tmp_path, monkeypatch):
    monkeypatch.setattr(static, "PATIENCE", 0)
    failure = launch(Job(command=["python", str(script(BLAMING)), str(tmp_path / "pid"), "early"], ranks=2))
    assert failure.words == "rank 1 ended with exit code 1; it waited for rank 0, which had finished"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 3, "hosts": parse_hosts("localhost:2")}, "at most 2 ranks"),
        ({"ranks": 1, "most": 2}, "elastic"),
        ({"ranks": 1, "least": 1, "hosts": parse_hosts("localhost:2")}, "at least two --hosts"),
        ({"ranks": 2, "least": 3, "hosts": parse_hosts("localhost:2,127.0.0.1:2")}, "--min-np <= -np"),
        ({"ranks": 2, "least": 1, "most": 1, "hosts": parse_hosts("localhost:2,127.0.0.1:2")}, "<= --max-np"),
        ({"ranks": 5, "least": 1, "hosts": parse_hosts("localhost:2,127.0.0.1:2")}, "at most 4 ranks"),
        ({"ranks": 1, "discovery_script": "false"}, "discovery script"),
        ({"discovery_script": "true"}, "no host yet"),
        ({"ranks": 1, "interfaces": ["nonsense0"]}, "nonsense0"),
        ({"ranks": 1, "stall_limit": 1}, "stall limit"),
        ({"ranks": 2, "tf_config_port": 65535}, "at most 65534 for 2 ranks. Received: 65535"),
        ({"ranks": 2, "tf_config_port": 2222, "parameter_servers": 1}, "at least 3 ranks"),
        ({"ranks": 2, "parameter_servers": 1}, "with --tf-config"),
        ({"least": 1, "tf_config_port": 2222, "hosts": parse_hosts("a:1,b:1")}, "hosts are fixed"),
    ],
)
def test_a_job_that_cannot_be_is_refused(options, words):
    with pytest.raises(HorovodError, match=words):
        launch(Job(command=["true"], **options))


def test_a_command_that_is_not_there_or_not_executable_is_named(tmp_path):
    (tmp_path / "data").write_text("")
    for command in ("no-such-command-at-all", str(tmp_path / "data")):
        with pytest.raises(HorovodError, match=command):
            launch(Job(command=[command], ranks=2))


def test_a_folder_for_output_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HorovodError, match="file"):
        launch(Job(command=["true"], ranks=2, output_folder=tmp_path / "file"))


def test_without_horovod_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    for name in [name for name in sys.modules if name.startswith("horovod.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(HorovodError, match=r"^Horovod is not installed; run `tfperf horovod install`$"):
        launch(Job(command=["true"], ranks=1))


SSH = """#!/bin/sh
# stands for ssh: runs the command here, and for the host named "down" fails as ssh does
while [ "$1" = -o ]; do shift 2; done
echo "$1" >> "$SSH_LOG"
case "$1" in down*) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255;; esac
shift
exec sh -c "$*"
"""


@pytest.fixture
def ssh_log(tmp_path, monkeypatch):
    """A program `ssh` that stays on this machine; the file in which it notes the hosts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    log = tmp_path / "ssh.log"
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("SSH_LOG", str(log))
    return log


RECORDING_SSH = """#!{python}
import os, sys
line = b"" if sys.stdin.isatty() else os.fdopen(0, "rb", 0, closefd=False).readline()
with open({record!r}, "ab") as file:
    file.write(b"\\0".join(word.encode() for word in sys.argv) + b"\\n" + line)
reader, writer = os.pipe()
if os.fork() == 0:
    os.close(reader)
    os.write(writer, line)
    while piece := os.read(0, 1024):
        os.write(writer, piece)
    os._exit(0)
os.dup2(reader, 0)
os.close(writer)
os.execvp("sh", ["sh", "-c", sys.argv[-1]])
"""
"""Stands for ssh: notes its command line and what it is sent at first, and runs the command here."""

PLANTED = "planted-6f1d"
CREDENTIALS = ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "TF_API_KEY", "HOROVOD_PASSWORD", "PYTHON_KEYRING_CREDENTIALS"]
OTHERS = ["HOME_OF_MINE", "DATABASE_URL", "https_proxy"]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A function that launches a rank behind ssh, and says all that ssh saw and what variables the rank has."""
    folder, record = tmp_path / "bin", tmp_path / "record"
    folder.mkdir()
    (folder / "ssh").write_text(RECORDING_SSH.format(python=sys.executable, record=str(record)))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def recorded(capfd, environment, **options):
        job = Job(
            command=["python", "-c", TELL],
            hosts=elsewhere("one"),
            interfaces=["lo"],
            environment=os.environ | environment,
            **options,
        )
        assert launch(job) is None
        (line,) = capfd.readouterr().out.splitlines()
        return record.read_text(), json.loads(line)[3]

    return recorded


def test_no_credential_leaves_this_machine(recorded, capfd):
    """And nothing else that a rank does not need."""
    seen, _ = recorded(capfd, dict.fromkeys([*CREDENTIALS, *OTHERS], PLANTED))
    assert "tfperf.processes.keeper" in seen
    assert "HOROVOD_RANK" in seen
    assert PLANTED not in seen
    assert not any(name in seen for name in [*CREDENTIALS, *OTHERS])


def test_a_variable_is_sent_to_those_who_ask_for_it(recorded, capfd):
    environment = {"HF_TOKEN": PLANTED, "MINE": PLANTED, "AWS_SECRET_ACCESS_KEY": PLANTED, "TF_MINE": "1"}
    seen, variables = recorded(capfd, environment, exported=["HF_TOKEN", "MINE"])
    assert variables["HF_TOKEN"] == variables["MINE"] == PLANTED
    assert variables["TF_MINE"] == "1"
    assert "AWS_SECRET_ACCESS_KEY" not in seen
    for command_line in (line for line in seen.splitlines() if "\0" in line):
        assert PLANTED not in command_line


def test_a_variable_that_is_not_set_cannot_be_sent(ssh_log):
    with pytest.raises(HorovodError, match=r"expected --export .* Received: NO_SUCH_VARIABLE"):
        launch(Job(command=["true"], hosts=elsewhere("one"), interfaces=["lo"], exported=["NO_SUCH_VARIABLE"]))


def elsewhere(*names):
    return parse_hosts(",".join(f"{name}.invalid:1" for name in names))  # RFC 2606 keeps it from ever being a host


def test_ranks_on_several_machines(ssh_log, capfd):
    job = Job(command=["python", "-c", TELL, "a b"], hosts=elsewhere("one", "two"), interfaces=["lo"])
    assert launch(job) is None
    output = capfd.readouterr()
    told = [json.loads(line.partition(" ")[2]) for line in sorted(output.out.splitlines())]
    assert [arguments for arguments, *_ in told] == [["a b"]] * 2
    assert [variables["HOROVOD_HOSTNAME"] for *_, variables in told] == ["one.invalid", "two.invalid"]
    assert [variables["HOROVOD_RANK"] for *_, variables in told] == ["0", "1"]
    assert {folder for _, _, folder, _ in told} == {str(Path.cwd())}
    assert sorted(ssh_log.read_text().split()) == ["one.invalid"] * 2 + ["two.invalid"] * 2


def test_a_run_on_several_machines_says_what_it_exposes(ssh_log, capfd):
    assert launch(Job(command=["true"], hosts=elsewhere("one"), interfaces=["lo"])) is None
    (line,) = capfd.readouterr().err.splitlines()
    for words in ("one.invalid", "CVE-2024-10190", "CVE-2026-31234", "firewall", "listen on lo"):
        assert words in line


def test_a_rank_elsewhere_ends_with_the_others(ssh_log, script):
    path = script("if rank == 1:\n    sys.exit(3)\nsignal.pause()\n")
    failure = launch(Job(command=["python", str(path)], hosts=elsewhere("one", "two"), interfaces=["lo"]))
    assert failure.words == "rank 1 on two.invalid ended with exit code 3; the other ranks were ended"


@pytest.mark.parametrize(
    ("host", "words"), [("localhost", "ended with exit code 255"), ("one.invalid", "is lost: ssh")]
)
def test_exit_code_255_may_be_sshs(ssh_log, host, words):
    failure = launch(Job(command=["sh", "-c", "exit 255"], hosts=parse_hosts(f"{host}:1"), interfaces=["lo"]))
    assert words in failure.words
    assert failure.code == 255


def test_the_common_interfaces_of_several_machines_are_found(ssh_log, capfd):
    """With Horovod's own helpers, which listen on all interfaces: the warning says that too."""
    assert launch(Job(command=["true"], hosts=elsewhere("one", "two"))) is None
    assert "helpers listen on all interfaces" in capfd.readouterr().err


def test_a_machine_out_of_reach_is_named_before_anything_starts(ssh_log, tmp_path, capfd):
    job = Job(command=["touch", str(tmp_path / "started")], hosts=elsewhere("one", "down"), interfaces=["lo"])
    with pytest.raises(HorovodError, match=r"down\.invalid through ssh.*No route to host"):
        launch(job)
    assert not (tmp_path / "started").exists()
