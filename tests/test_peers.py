"""benchmarks/peers.py as far as it goes without the peers: its processes, its nets, and what it says."""

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from importlib.machinery import PathFinder
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest

from tfperf.errors import EngineError
from tfperf.exports import open_model
from tfperf.measure import Comparison, Doubt, Stop, check_agreement
from tfperf.measure.comparison import paired
from tfperf.measure.sampling import TimesItself

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "peers.py"

FAKE = """
import os, signal, subprocess, sys, types
import numpy as np
from benchmarks.peers import worker
from benchmarks.peers.given import Loaded
calls = iter(range(10**9))
def load(given):
{code}
    return Loaded(call, lambda x: x, f"{{given.way}} of {{given.net}}")
sys.modules["benchmarks.peers.fake_peer"] = types.SimpleNamespace(load=load)
worker.main("fake_peer")
"""

GOOD = "def call(x):\n    print('noise')\n    return x * 2"
FAILING = "raise RuntimeError('no such\\noperation')"
DYING = "def call(x):\n    print('out of luck', file=sys.stderr)\n    os.kill(os.getpid(), signal.SIGKILL)"
HANGING = "subprocess.Popen(['sleep', '1000'])\ndef call(x):\n    signal.pause()"


@pytest.fixture(scope="module", autouse=True)
def importable():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield


@pytest.fixture(scope="module")
def script():
    """benchmarks/peers.py as a module, beside the package of its name."""
    spec = importlib.util.spec_from_file_location("benchmark_of_peers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A function from the code of a peer to its process."""
    catalog = importlib.import_module("benchmarks.peers.catalog")
    process = importlib.import_module("benchmarks.peers.process")
    np.savez(tmp_path / "inputs.npz", **{"0": np.arange(6.0).reshape(3, 2)})

    def fake(code, **options):
        program, python = tmp_path / "fake.py", tmp_path / "python"
        program.write_text(FAKE.format(code=textwrap.indent(code, "    ")))
        python.write_text(f"#!/bin/sh\nexec {sys.executable} -P {program}\n")
        python.chmod(0o755)
        monkeypatch.setitem(catalog.PYTHON, "fake_peer", python)
        return process.PeerProcess(catalog.Peer("a peer", "fake_peer", "its way"), **options)

    return fake


def test_a_process_answers_and_times_itself(fake, tmp_path):
    work_of = importlib.import_module("benchmarks.peers.process").PeerWork
    with fake(GOOD) as process:
        assert process.load("mlp", tmp_path) == "its way of mlp"
        np.testing.assert_array_equal(process.answers(), np.arange(6.0).reshape(3, 2) * 2)
        work = work_of(process)
        assert isinstance(work, TimesItself)
        assert 0 < work.timed(1) < work.timed(10_000)
        assert work.memory().resident > 2**20
        assert 0 < work.cores_used < os.cpu_count() + 1


def test_a_process_stands_still_until_it_is_woken(fake, tmp_path):
    with fake(GOOD) as process:
        process.load("mlp", tmp_path)
        process.rest()
        seen = psutil.Process(process.pid)
        for _ in range(1000):
            if seen.status() == psutil.STATUS_STOPPED:
                break
        assert seen.status() == psutil.STATUS_STOPPED
        process.wake()
        assert process.ask("timed", calls=3)["seconds"] > 0
        process.rest()  # it can be ended all the same


def test_what_a_peer_raises_is_one_line(fake, tmp_path):
    with fake(FAILING) as process, pytest.raises(EngineError, match=r"^a peer: RuntimeError: no such operation$"):
        process.load("mlp", tmp_path)


def test_a_peer_that_dies_is_told_with_its_last_words(fake, tmp_path):
    with fake(DYING) as process:
        process.load("mlp", tmp_path)
        with pytest.raises(EngineError, match="a peer: its process was killed by SIGKILL: out of luck"):
            process.answers()


def test_a_peer_that_hangs_is_ended_with_what_it_started(fake, tmp_path):
    with fake(HANGING, deadline=20) as process:
        process.load("mlp", tmp_path)
        family = psutil.Process(process._process.pid).children(recursive=True)
        assert [child.name() for child in family] == ["sleep"]
        process._deadline = 0.2
        with pytest.raises(EngineError, match=r"no answer within 0\.2 s; its process was ended"):
            process.answers()
    assert not psutil.pid_exists(process._process.pid)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


def test_onnx_runtime_openvino_and_litert_answer_as_keras_does(tmp_path):
    catalog = importlib.import_module("benchmarks.peers.catalog")
    process = importlib.import_module("benchmarks.peers.process")
    subject = importlib.import_module("benchmarks.peers.subject").prepare("mlp", tmp_path)
    own = [peer for peer in catalog.PEERS if peer.module not in catalog.PYTHON]
    assert {peer.module for peer in own} == {"onnx_peer", "openvino_peer", "litert_peer"}
    for peer in own:
        with process.PeerProcess(peer) as running:
            assert running.load("mlp", tmp_path)
            tolerance = catalog.TOLERANCES[peer.precision]
            assert check_agreement(peer.name, running.answers(), subject.reference, tolerance).passed


def test_the_weights_of_a_net_make_another_answer_alike():
    nets = importlib.import_module("benchmarks.peers.nets")
    net = nets.build("MobileNetV2")
    state = np.random.default_rng(1)
    x = state.standard_normal((2, *net.input_shape[1:])).astype("float32")
    answers = np.asarray(net(x, training=False))
    again = np.asarray(nets.build_alike("MobileNetV2", nets.weights_of(net))(x, training=False))
    np.testing.assert_array_equal(again, answers)
    assert np.abs(answers[0] - answers[1]).max() > 0.02 * np.abs(answers).max()  # else a check of them sees nothing
    norms = [layer for layer in net.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert {layer.momentum for layer in norms} == {0.999}


def test_tfperf_opens_the_net_that_the_peers_get(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # in front of which open_model puts the folder
    nets = importlib.import_module("benchmarks.peers.nets")
    for name in importlib.import_module("benchmarks.peers.catalog").NETS:
        opened, built = open_model(nets.model_of(name)).net, nets.build(name)
        for ours, theirs in zip(opened.get_weights(), built.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_every_peer_has_a_name_of_its_own_and_a_module():
    catalog = importlib.import_module("benchmarks.peers.catalog")
    assert len({peer.name for peer in catalog.PEERS}) == len(catalog.PEERS)
    for peer in catalog.PEERS:
        assert (SCRIPT.with_suffix("") / f"{peer.module}.py").is_file()
        assert peer.precision in catalog.TOLERANCES


def test_nothing_in_the_folder_hides_a_library():
    folder = SCRIPT.with_suffix("")  # which open_model puts in front of the path
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != folder]
    for file in folder.glob("*.py"):
        assert file.stem == "__init__" or PathFinder.find_spec(file.stem, elsewhere) is None


@pytest.fixture
def found(script, noisy):
    """A function from seconds of candidates to what a contest has shown."""

    def found(seconds, failed=(), doubts=()):
        names = {name: f"mlp, float32: {name}" for name in seconds}
        rounds = {name: np.random.default_rng(i).normal(s, s / 200, 50) for i, (name, s) in enumerate(seconds.items())}
        (ours, *others) = seconds
        ratios = [paired(names[ours], names[one], rounds[ours], rounds[one], 0.01) for one in others]
        comparison = Comparison(
            measurements=tuple(noisy(names[name], value) for name, value in seconds.items()),
            ratios=tuple(ratios),
            rounds=50,
            margin=0.01,
            stopped=Stop.PRECISION,
            doubts=doubts,
        )
        candidates = {name: script.Candidate(None, check_agreement(name, [1.0], [1.0]), "") for name in seconds}
        choice = script.Plan(engine="litert", threads=1)
        return script.Found("mlp", script.CONTESTS[0], choice, candidates, dict.fromkeys(failed, "why"), comparison)

    return found


def test_the_promise_holds_when_no_peer_is_faster(found):
    one = found({"tfperf": 1.0, "LiteRT": 1.001, "JAX jit": 3.0})
    assert one.held
    assert one.best == "LiteRT"
    assert str(one).startswith("mlp, float32: litert, 1 thread against the best peer, LiteRT: no difference, ")
    assert str(one).endswith(": holds")


def test_a_faster_peer_breaks_the_promise(found):
    one = found({"tfperf": 1.0, "LiteRT": 0.9, "JAX jit": 3.0})
    assert not one.held
    assert one.lost_to == ["LiteRT"]
    assert "slower than LiteRT: DOES NOT HOLD" in str(one)


def test_a_peer_that_did_not_run_was_not_beaten(found):
    one = found({"tfperf": 1.0, "LiteRT": 2.0}, failed=["JAX jit"])
    assert not one.held
    assert "did not run: JAX jit: DOES NOT HOLD" in str(one)


def test_too_few_rounds_for_a_verdict_show_nothing(found):
    few = Doubt(name="few_rounds", words="only 5 rounds", advice="measure longer")
    one = found({"tfperf": 1.0, "LiteRT": 2.0}, doubts=(few,))
    assert not one.held
    assert str(one).endswith("; only 5 rounds: DOES NOT HOLD")


def test_without_the_peers_the_command_says_what_to_do(script, monkeypatch, tmp_path, capsys):
    catalog = importlib.import_module("benchmarks.peers.catalog")
    monkeypatch.setattr(catalog, "FOREIGN", tmp_path / ".venv-peers")
    with pytest.raises(script.typer.Exit) as ended:
        script.main(net=None)
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "expected PyTorch and JAX in .venv-peers; run: make peers\n"


def test_an_unknown_net_is_refused():
    command = [sys.executable, str(SCRIPT), "--net", "resnet50"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"COLUMNS": "200"})
    assert ended.returncode == 2
    assert "expected one of mlp, mnist_cnn, resnet18, MobileNetV2. Received: resnet50" in ended.stderr
