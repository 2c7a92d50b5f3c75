"""A net is converted once, whatever process asks, and another net is never taken for it."""

import errno
import importlib.metadata
import json
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf import caching, get_net
from tfperf.engines import Plan, find_engine, frozen, load, openvino, saved_model, xla_aot
from tfperf.engines.catalog import missing
from tfperf.engines.conversions import Conversions, fingerprint
from tfperf.errors import CacheError, EngineError, ExportError
from tfperf.exports.servable import Servable

FROZEN = Plan(engine="frozen")

PROGRAM = """
import sys
from pathlib import Path
import keras
import tensorflow as tf
from tfperf import get_net
from tfperf.engines import Plan
from tfperf.engines.conversions import Conversions, fingerprint
from tfperf.exports.servable import Servable
for _ in range(int(sys.argv[2])):  # functions have the numbers of a counter, which differ from process to process
    tf.function(lambda x: x).get_concrete_function(tf.TensorSpec((), "float32"))
keras.utils.set_random_seed(0)
recurrent = keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4, return_sequences=True), keras.layers.LSTM(4)])
nets = [get_net("mlp", seed=1), recurrent, get_net("mlp", seed=2)]
print(*(fingerprint(Servable.from_net(net)) for net in nets), sep=",", flush=True)
servable = Servable.from_net(get_net("mlp"))
for number in range(10_000):
    servable.net.set_weights([array + 1 for array in servable.net.get_weights()])
    Conversions(servable, Path(sys.argv[1])).folder(Plan(engine="frozen"))
    if number == 0:
        print("converting", flush=True)
"""


def dense(width=3, seed=0, name="dense"):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(width, name="y")], name=name)


@pytest.fixture
def made(monkeypatch):
    """The plans that were converted; what converts only counts, in place of four engines' code."""
    calls = []

    def convert(servable, plan, examples, folder):
        calls.append(str(plan))
        (folder / "net").write_text("converted")
        return {}

    for module in (frozen, openvino, saved_model, xla_aot):
        monkeypatch.setattr(module, "convert", convert)
    monkeypatch.setattr(xla_aot, "compile_converted", lambda source, plan, folder, proof: proof)
    monkeypatch.setattr(xla_aot, "target", lambda _plan: "this processor")
    return calls


def test_a_net_is_converted_once(made, tmp_path):
    net = dense()
    first = Conversions(Servable.from_net(net), tmp_path).folder(FROZEN)
    written = (first / "net").stat().st_mtime_ns
    for servable in (Servable.from_net(net), Servable.from_net(dense())):
        again = Conversions(servable, tmp_path)
        assert again.folder(FROZEN) == again.folder(FROZEN.model_copy(update={"threads": 2})) == first
    assert made == ["frozen"]
    assert (first / "net").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert sorted(path.name for path in first.iterdir()) == ["net", "proof.json"]


def test_other_weights_are_another_net(made, tmp_path):
    net = dense()
    servable = Servable.from_net(net)
    before = Conversions(servable, tmp_path).folder(FROZEN)
    weights = net.get_weights()
    changed = [weights[0], weights[1] + np.float32(1e-6)]
    net.set_weights(changed)
    assert Conversions(servable, tmp_path).folder(FROZEN) != before
    assert Conversions(Servable.from_net(dense(5)), tmp_path).folder(FROZEN) != before
    net.set_weights(weights)
    assert Conversions(servable, tmp_path).folder(FROZEN) == before
    assert len(made) == 3


def test_constants_of_the_code_are_part_of_the_net(made, tmp_path):
    """TensorFlow keeps small ones in the graph, and hands it large ones as it does with variables."""

    class Shift(keras.layers.Layer):
        def __init__(self, by):
            super().__init__()
            self.by = tf.fill([300], np.float32(by))

        def call(self, x):
            return x + self.by

    nets = [keras.Sequential([keras.Input((300,)), Shift(by)], name="shift") for by in (1, 2, 1)]
    folders = [Conversions(Servable.from_net(net), tmp_path).folder(FROZEN) for net in nets]
    assert folders[0] != folders[1]


def test_a_net_with_a_lookup_table_is_like_no_other():
    words = keras.Sequential(
        [keras.Input((1,), dtype="string"), keras.layers.StringLookup(vocabulary=["a", "b"]), keras.layers.Dense(2)]
    )
    servable = Servable.from_net(words)
    assert fingerprint(servable) != fingerprint(servable)


def test_what_the_conversion_depends_on_decides(made, tmp_path, monkeypatch):
    conversions = Conversions(Servable.from_net(dense()), tmp_path)

    def folder(engine, **settings):
        return conversions.folder(Plan(engine=engine, **settings))

    assert folder("frozen") != folder("frozen", precision="bfloat16")
    assert folder("saved_model") == folder("c_api", threads=1)
    assert folder("openvino") == folder("openvino", precision="bfloat16") != folder("openvino", precision="int8_static")
    ahead = [folder("xla_aot", batch=batch, threads=threads) for batch in (1, 2) for threads in (1, 2)]
    assert len(set(ahead)) == 4
    monkeypatch.setattr(xla_aot, "target", lambda _plan: "another processor")
    assert folder("xla_aot", batch=1, threads=1) not in ahead
    number = len(made)
    version = importlib.metadata.version
    before = folder("frozen")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99" if name == "tensorflow" else version(name))
    assert folder("frozen") != before
    assert len(made) == number + 1


@pytest.mark.parametrize("package", ["openvino", "tf2onnx", "onnx", "onnxruntime", "tensorflow", "tfperf"])
def test_a_new_version_of_what_converts_or_quantizes_makes_it_anew(package, made, tmp_path, monkeypatch):
    conversions = Conversions(Servable.from_net(dense()), tmp_path)
    plans = {one: Plan(engine="openvino", precision=one) for one in ("float32", "int8_static")}
    before = {one: conversions.place(plan) for one, plan in plans.items()}
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99" if name == package else version(name))
    changed = {one for one, plan in plans.items() if conversions.place(plan) != before[one]}
    quantizes_only = package in ("tf2onnx", "onnx", "onnxruntime")
    assert changed == ({"int8_static"} if quantizes_only else {"float32", "int8_static"})


def test_a_new_version_of_the_package_that_brings_an_engine_makes_it_anew(planted, tmp_path, monkeypatch):
    conversions = Conversions(Servable.from_net(dense()), tmp_path)
    ours, theirs = FROZEN, Plan(engine="honest")
    before = conversions.place(ours), conversions.place(theirs)
    assert find_engine("honest").release.startswith("planted ")
    genuine = find_engine
    monkeypatch.setattr(
        "tfperf.engines.conversions.find_engine",
        lambda name: genuine(name)._replace(release="planted 99") if name == "honest" else genuine(name),
    )
    assert conversions.place(ours) == before[0]
    assert conversions.place(theirs) != before[1]


def test_what_is_known_is_not_made_and_can_be_asked_for_first(made, tmp_path):
    servable = Servable.from_net(dense())
    conversions = Conversions(servable, tmp_path / "cache")
    assert conversions.known(FROZEN) is None
    assert (made, list(tmp_path.iterdir())) == ([], [])
    folder = conversions.folder(FROZEN)
    assert conversions.known(FROZEN) == conversions.known(FROZEN.model_copy(update={"threads": 2})) == folder
    assert conversions.known(FROZEN.model_copy(update={"precision": "bfloat16"})) is None
    assert made == ["frozen"]


def test_a_fingerprint_that_is_known_is_not_taken_again(made, tmp_path, monkeypatch):
    servable = Servable.from_net(dense())
    taken = Conversions(servable, tmp_path)
    folder = taken.folder(FROZEN)
    monkeypatch.setattr("tfperf.engines.conversions.fingerprint", pytest.fail)
    again = Conversions(servable, tmp_path, known_fingerprint=taken.fingerprint)
    assert (again.fingerprint, again.known(FROZEN), again.cache) == (fingerprint(servable), folder, tmp_path)
    other = Conversions(servable, tmp_path, known_fingerprint="of another net")
    assert other.folder(FROZEN) != folder


def test_what_the_net_is_transformed_by_decides(made, tmp_path):
    conversions = Conversions(Servable.from_net(dense()), tmp_path)
    sets = [(), ("fold_batch_norm",), ("fuse_batch_norm",), ("fold_batch_norm", "fuse_batch_norm")]
    plans = [FROZEN.model_copy(update={"transformations": one}) for one in sets]
    assert len({conversions.folder(plan) for plan in plans}) == 4
    with pytest.raises(EngineError, match=r"^expected transformations of frozen \(.*\)\. Received: constant_weights$"):
        conversions.folder(FROZEN.model_copy(update={"transformations": ("constant_weights",)}))


def test_scales_come_from_the_representative_inputs(made, tmp_path):
    servable = Servable.from_net(dense())
    ones, twos = np.ones((2, 4), "float32"), np.full((2, 4), 2, "float32")
    static, dynamic = Plan(engine="openvino", precision="int8_static"), Plan(engine="openvino")
    given = [Conversions(servable, tmp_path, [array]) for array in (ones, twos, ones)]
    folders = [one.folder(static) for one in given]
    assert folders[0] == folders[2] != folders[1]
    assert len({one.folder(dynamic) for one in given}) == 1
    with pytest.raises(ValueError, match="expected the input x"):
        Conversions(servable, tmp_path, [np.ones((2, 5), "float32")])


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (RuntimeError("no\n  rule"), EngineError, r"^frozen cannot take the net 'dense': RuntimeError: no rule$"),
        (EngineError("as it is"), EngineError, "^as it is$"),
        (ExportError("as it is"), ExportError, "^as it is$"),
        (OSError(28, "No space left on device"), OSError, "No space left"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_conversion_that_fails_leaves_nothing(error, raised, message, tmp_path, monkeypatch):
    def convert(servable, plan, examples, folder):
        (folder / "half").write_text("of it")
        raise error

    monkeypatch.setattr(frozen, "convert", convert)
    conversions = Conversions(Servable.from_net(dense()), tmp_path / "cache")
    with pytest.raises(raised, match=message):
        conversions.folder(FROZEN)
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.undo()
    assert (conversions.folder(FROZEN) / "graph.pb").exists()


TWO_AT_ONCE = """
import sys
from pathlib import Path
from tfperf import get_net
from tfperf.engines import Plan, frozen, load
from tfperf.engines.conversions import Conversions
from tfperf.exports.servable import Servable
servable = Servable.from_net(get_net("mlp", seed=1))
conversions, plan = Conversions(servable, Path(sys.argv[1])), Plan(engine="frozen")
convert = frozen.convert
def both_convert(*arguments):
    proof = convert(*arguments)
    print("converted", flush=True)
    sys.stdin.readline()  # until the other has converted, too
    return proof
frozen.convert = both_convert
folder = conversions.folder(plan)
before = folder.stat().st_ino
print("there", flush=True)
sys.stdin.readline()  # until the other is there, too
with load(folder, servable.signature, plan) as runner:
    runner(*servable.signature.random_inputs(1))
print(folder.name, before, folder.stat().st_ino, flush=True)
"""


def test_two_processes_that_convert_the_same_at_once_load_one_conversion(tmp_path):
    command = [sys.executable, "-P", "-c", TWO_AT_ONCE, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        for words in ("converted\n", "there\n"):
            for process in started:
                assert process.stdout.readline() == words
            for process in started:
                process.stdin.write("\n")
                process.stdin.flush()
        told = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait(60)
    name, before, after = told[0].split()
    assert told == [f"{name} {before} {after}\n"] * 2
    assert before == after
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_conversion_that_others_could_change_is_not_loaded(made, tmp_path):
    conversions = Conversions(Servable.from_net(dense()), tmp_path)
    conversions.folder(FROZEN).chmod(0o777)
    with pytest.raises(CacheError, match="chmod -R go-w"):
        Conversions(Servable.from_net(dense()), tmp_path).folder(FROZEN)


def test_what_conversions_gave_stays_as_long_as_they_live(made, tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "LATELY", -1.0)
    monkeypatch.setenv("TFPERF_CACHE_GIB", "0")
    conversions = Conversions(Servable.from_net(dense()), tmp_path)
    folder = conversions.folder(FROZEN)
    caching.keep_within_bound(tmp_path)
    assert folder.is_dir()
    again = Conversions(Servable.from_net(dense()), tmp_path)
    assert again.known(FROZEN) == folder
    del conversions
    caching.keep_within_bound(tmp_path)
    assert folder.is_dir()
    del again
    caching.keep_within_bound(tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize("engine", ["frozen", "saved_model", "litert", "openvino"])
def test_a_disk_that_is_full_at_any_moment_is_one_line_and_leaves_nothing(engine, small_disk):
    if wanted := missing(find_engine(engine)):
        pytest.skip(wanted)
    servable = Servable.from_net(keras.Sequential([keras.Input((32,), name="x"), keras.layers.Dense(200, name="y")]))
    cache, failed = small_disk.root / "cache", 0
    for full in small_disk.fuller_to_emptier(step=25):
        try:
            folder = Conversions(servable, cache).folder(Plan(engine=engine))
        except OSError as error:
            failed, told = failed + 1, error
            assert told.errno == errno.ENOSPC, full
            assert str(told).startswith(f"[Errno 28] No space left on device: '{small_disk.root}/"), full
            assert len(str(told).splitlines()) == 1
            assert not cache.exists() or list(cache.iterdir()) == [], full
        else:
            assert sorted(cache.iterdir()) == [folder], full
            shutil.rmtree(folder)
    assert failed > 3


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Two processes that were killed while they converted: what each said of some nets, and its cache."""
    runs = []
    generator = np.random.default_rng(0)
    for counted in (0, 150):
        cache = tmp_path_factory.mktemp("killed")
        command = [sys.executable, "-P", "-c", PROGRAM, str(cache), str(counted)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                fingerprints = process.stdout.readline().strip().split(",")
                assert process.stdout.readline() == "converting\n"
                time.sleep(generator.uniform(0.1, 0.5))
            finally:
                process.send_signal(signal.SIGKILL)
        runs.append((fingerprints, cache))
    return runs


def test_processes_know_the_same_net(killed):
    (first, _), (second, _) = killed
    assert first == second
    assert len(set(first)) == 3


def test_a_killed_process_leaves_no_part(killed):
    signature = Servable.from_net(get_net("mlp")).signature
    for _, cache in killed:
        whole = [path for path in cache.iterdir() if not path.name.startswith(".")]
        assert whole
        for folder in whole:
            assert json.loads((folder / "proof.json").read_text())["precision"].startswith("3 of 3 ")
        with load(whole[-1], signature, FROZEN) as runner:
            assert np.isfinite(runner(*signature.random_inputs(1))).all()
