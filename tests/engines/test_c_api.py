import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf import get_net
from tfperf.engines import c_api
from tfperf.engines.conversions import Conversions
from tfperf.engines.plan import Plan
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable
from tfperf.exports.signature import Signature, TensorForm
from tfperf.measure import check_agreement

PLAN = Plan(engine="c_api", threads=1)

PREAMBLE = """\
import sys
from pathlib import Path
import numpy as np
from tfperf.engines.building import load
from tfperf.engines.plan import Plan
from tfperf.errors import EngineError
from tfperf.exports.signature import Signature
folder, signature = Path(sys.argv[1]), Signature.model_validate_json(sys.argv[2])
one, two = (Plan(engine="c_api", threads=threads) for threads in (1, 2))
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Where this file's builds and conversions are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFPERF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """A net, and the folder that the engine loads."""
    return converted(Servable.from_net(get_net("mlp", seed=0)), tmp_path_factory)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The same of a net with several inputs and outputs, of several types."""
    ids = keras.Input((4,), dtype="int32", name="ids")
    weights = keras.Input((4, 3), name="weights")
    found = keras.layers.Embedding(2, 3)(ids)
    outputs = {
        "weighted": found * weights,
        "doubled": ids * 2,
        "positive": weights > 0,
        "total": keras.ops.sum(weights, axis=(1, 2)),
    }
    return converted(Servable.from_net(keras.Model([weights, ids], outputs)), tmp_path_factory)


def converted(servable, tmp_path_factory):
    return servable, Conversions(servable, tmp_path_factory.mktemp("conversions")).folder(PLAN)


def run_alone(servable, folder, program, *arguments):
    """Run a program in a process of its own, which must not import TensorFlow; what it printed."""
    end = "\nassert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    command = [sys.executable, "-P", "-c", PREAMBLE + program + end, str(folder)]
    done = subprocess.run(
        [*command, servable.signature.model_dump_json(), *map(str, arguments)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", ["mlp", "mixed"])
def test_its_answers_are_those_of_the_net_whatever_the_batch(name, request, tmp_path):
    servable, folder = request.getfixturevalue(name)
    batches = (1, 7, 7, 1)
    inputs = [servable.signature.random_inputs(batch, seed) for seed, batch in enumerate(batches)]
    np.savez(tmp_path / "inputs.npz", *(array for arrays in inputs for array in arrays))
    program = """
arrays = list(np.load(sys.argv[3]).values())
number = len(signature.inputs)
with load(folder, signature, one) as runner:
    answers = [runner(*arrays[place : place + number]) for place in range(0, len(arrays), number)]
np.savez(sys.argv[4], *(array for given in answers for array in given))
"""
    run_alone(servable, folder, program, tmp_path / "inputs.npz", tmp_path / "answers.npz")
    answers = list(np.load(tmp_path / "answers.npz").values())
    number = len(servable.signature.outputs)
    for place, arrays in enumerate(inputs):
        given = tuple(answers[place * number : (place + 1) * number])
        expected = servable.reference(arrays)
        assert [one.dtype for one in given] == [one.dtype for one in expected]
        assert check_agreement("c_api", given, expected, 1e-5).passed


def test_a_call_takes_any_memory_and_a_closed_runner_none(mlp):
    program = """
features = np.random.default_rng(0).standard_normal((2, 512)).astype("float32")
runner = load(folder, signature, one)
(expected,) = runner(features)
(straight,) = runner.run(features)
(turned,) = runner.run(np.asfortranarray(features))
assert turned is straight and runner.reuses_outputs
np.testing.assert_array_equal(turned, expected)
assert runner.size > 4 * 512 * 256
runner.close()
runner.close()
try:
    runner(features)
except ValueError as error:
    print(error)
"""
    assert run_alone(*mlp, program).strip() == "expected an open runner, this one was closed"


def test_the_kernel_counts_its_threads_and_another_number_needs_another_process(mlp):
    program = """
import json
with load(folder, signature, two) as runner:
    told = runner.proof
try:
    load(folder, signature, one)
except EngineError as error:
    print(json.dumps([told, str(error)]))
"""
    proof, error = json.loads(run_alone(*mlp, program))
    assert proof["threads"] == "2 in TensorFlow's pool, as the kernel counts them"
    assert proof["precision"] == "3 of 3 matrix products and convolutions in float32"
    assert error == "expected TensorFlow with 1 threads, in this process it has started with 2; use a fresh process"


def test_what_tensorflow_cannot_load_or_run_is_told_in_one_line(mlp):
    program = """
import shutil, tempfile
with tempfile.TemporaryDirectory() as place:
    broken = Path(place, "broken")
    shutil.copytree(folder, broken)
    (broken / "saved_model.pb").write_bytes(b"no graph")
    try:
        load(broken, signature, one)
    except EngineError as error:
        print(error)
with load(folder, signature, one) as runner:
    try:
        runner.run(np.ones((2, 511), "float32"))
    except EngineError as error:
        print(error)
    print(len(runner.run(np.ones((2, 512), "float32"))))
"""
    loading, running, after = run_alone(*mlp, program).splitlines()
    assert loading.removeprefix("c_api, 1 thread cannot load the net: ") not in ("", loading)
    assert running.startswith("c_api, 1 thread cannot run: ")
    assert "[2,511]" in running
    assert after == "1"


@pytest.mark.parametrize("threads", [1, 127, 128, 4096])
def test_its_configuration_is_what_tensorflow_would_write(threads):
    wanted = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)
    wanted.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    assert tf.compat.v1.ConfigProto.FromString(c_api._config(threads)) == wanted
    assert c_api._config(None) == tf.compat.v1.ConfigProto().SerializeToString()


def test_strings_are_refused(tmp_path):
    text = Signature(inputs=(TensorForm(name="text", shape=(None,), dtype="string"),), outputs=())
    with pytest.raises(EngineError, match=r"^c_api, 1 thread: expected inputs and outputs of .*Received: text"):
        c_api.load(tmp_path, text, PLAN, {})


def test_it_says_what_to_install_where_there_is_no_compiler(mlp, monkeypatch, tmp_path):
    servable, folder = mlp
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(EngineError, match=r"^expected a compiler for \.c files \(no-such-compiler\); install one"):
        c_api.load(folder, servable.signature, PLAN, {})
