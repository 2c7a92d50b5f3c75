import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf import get_net
from tfperf.engines import xla_aot
from tfperf.engines.conversions import Conversions
from tfperf.engines.plan import Plan
from tfperf.engines.xla_aot import cpu_level
from tfperf.errors import EngineError
from tfperf.exports.servable import Servable
from tfperf.measure import check_agreement

ONE = Plan(engine="xla_aot", threads=1, batch=1)
SEVEN = Plan(engine="xla_aot", threads=1, batch=7)
TWO_THREADS = Plan(engine="xla_aot", threads=2, batch=3)

PREAMBLE = """\
import sys
from pathlib import Path
import numpy as np
from tfperf.engines.building import load
from tfperf.engines.plan import Plan
from tfperf.exports.signature import Signature
signature = Signature.model_validate_json(sys.argv[1])
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Where this file's builds are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFPERF_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def conversions(tmp_path_factory):
    return tmp_path_factory.mktemp("conversions")


@pytest.fixture(scope="module")
def mlp():
    return Servable.from_net(get_net("mlp", seed=0))


@pytest.fixture(scope="module")
def mixed():
    """A net with several inputs and outputs, of several types; it does not use one of the inputs."""

    class First(keras.layers.Layer):
        def call(self, tensors):
            return tensors[0]

    ids = keras.Input((4,), dtype="int32", name="ids")
    unused = keras.Input((), dtype="int64", name="another")
    weights = keras.Input((4, 3), name="weights")
    found = keras.layers.Embedding(2, 3)(First()([ids, unused]))
    outputs = {
        "weighted": keras.layers.Dense(64)(keras.layers.Dense(40)(found * weights)),
        "doubled": ids * 2,
        "positive": weights > 0,
        "total": keras.ops.sum(weights),
    }
    return Servable.from_net(keras.Model([unused, weights, ids], outputs))


def run_alone(servable, program, *arguments):
    """Run a program in a process of its own, which must not import TensorFlow; what it printed."""
    end = "\nassert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    command = [sys.executable, "-P", "-c", PREAMBLE + program + end, servable.signature.model_dump_json()]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CXX": "none-is-needed"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_two_batch_sizes_of_a_net_run_in_one_process(mlp, conversions, tmp_path):
    folders = [Conversions(mlp, conversions).folder(plan) for plan in (ONE, SEVEN)]
    inputs = [mlp.signature.random_inputs(batch) for batch in (1, 7)]
    np.savez(tmp_path / "inputs.npz", *(array for (array,) in inputs))
    program = """
import json
one, seven = np.load(sys.argv[4]).values()
plans = [Plan(engine="xla_aot", threads=1, batch=batch) for batch in (1, 7)]
runners = [load(Path(folder), signature, plan) for folder, plan in zip(sys.argv[2:4], plans)]
answers = [runner(features)[0] for runner, features in zip(runners, (one, seven))]
(turned,) = runners[1].run(np.asfortranarray(seven))
(again,) = runners[1].run(seven)
assert again is turned and runners[1].reuses_outputs
refused = []
for runner in runners[:1] * 2:
    try:
        runner(seven)
    except ValueError as error:
        refused.append(str(error))
    runner.close()
runners[1].close()
runners[1].close()
load(Path(sys.argv[3]), signature, plans[1]).run(0 * seven)  # takes memory that was given back
np.testing.assert_array_equal(turned, answers[1])
np.savez(sys.argv[5], *answers)
print(json.dumps([refused, runners[0].proof, runners[0].size]))
"""
    told = run_alone(mlp, program, *folders, tmp_path / "inputs.npz", tmp_path / "answers.npz")
    for arrays, answer in zip(inputs, np.load(tmp_path / "answers.npz").values(), strict=True):
        assert check_agreement("xla_aot", (answer,), mlp.reference(arrays), 1e-5).passed
    refused, proof, size = json.loads(told)
    built = "expected a batch of 1, for which xla_aot, 1 thread, batch 1 was built"
    assert refused == [f"{built}; pass so many, or build it for other sizes. Received: 7"] * 2
    assert proof["threads"] == "1, the caller's"
    assert proof["precision"] == f"3 of 3 matrix products and convolutions in float32, for {cpu_level()}"
    assert size > 4 * 512 * 256


def test_inputs_and_outputs_of_several_types_and_two_threads(mixed, conversions, tmp_path):
    folder = Conversions(mixed, conversions).folder(TWO_THREADS)
    inputs = mixed.signature.random_inputs(3)
    np.savez(tmp_path / "inputs.npz", *inputs)
    program = """
with load(Path(sys.argv[2]), signature, Plan(engine="xla_aot", threads=2, batch=3)) as runner:
    np.savez(sys.argv[4], *runner(*np.load(sys.argv[3]).values()))
    print(runner.proof["threads"])
"""
    told = run_alone(mixed, program, folder, tmp_path / "inputs.npz", tmp_path / "answers.npz")
    answers = tuple(np.load(tmp_path / "answers.npz").values())
    expected = mixed.reference(inputs)
    assert [one.dtype for one in answers] == [one.dtype for one in expected]
    assert check_agreement("xla_aot", answers, expected, 1e-5).passed
    assert re.fullmatch(r"2 in a pool, for [1-9] operations?", told.strip())


def test_what_xla_cannot_compile_is_told_in_one_line(tmp_path):
    class Digits(keras.layers.Layer):
        def call(self, numbers):
            return tf.strings.length(tf.strings.as_string(numbers))

    numbers = keras.Input((2,), dtype="int32", name="numbers")
    servable = Servable.from_net(keras.Model(numbers, Digits()(numbers)))
    with pytest.raises(EngineError, match=r"^xla_aot, 1 thread, batch 1: XLA failed: .*AsString") as caught:
        Conversions(servable, tmp_path).folder(ONE)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((2,), "string", r"expected inputs and outputs of float32, .*Received: given \(any, 2\) string"),
        ((None, 2), "float32", r"expected inputs whose only open size is the batch\. Received: given \(any, any, 2\)"),
    ],
)
def test_inputs_that_no_library_can_be_built_for_are_refused(shape, dtype, reason, tmp_path):
    given = keras.Input(shape, dtype=dtype, name="given")
    servable = Servable.from_net(keras.Model(given, keras.layers.Identity()(given)))
    with pytest.raises(EngineError, match=f"^xla_aot, 1 thread, batch 1: {reason}"):
        Conversions(servable, tmp_path).folder(ONE)


def test_it_says_what_to_install_where_there_is_no_compiler(mlp, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match=r"^expected a compiler for \.cc files \(no-such-compiler\); install one"):
        Conversions(mlp, tmp_path).folder(ONE)


def test_a_library_that_does_not_load_is_told(mlp, tmp_path):
    (tmp_path / "net.so").write_bytes(b"\x7fELF, and no more")
    with pytest.raises(EngineError, match=r"^expected a compiled net that loads; .*net\.so: .*too short") as caught:
        xla_aot.load(tmp_path, mlp.signature, ONE, {"threads": "0 operations"})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("lm sse2", "x86-64"),
        ("lm cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3", "x86-64-v2"),
        ("lm avx avx2 bmi1 bmi2 f16c fma abm movbe xsave", "x86-64"),
        ("lm cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave", "x86-64-v3"),
    ],
)
def test_a_processor_is_what_it_has_all_flags_of(flags, level, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: avx512f\n")
    assert cpu_level(file) == level


def test_another_processor_is_refused(tmp_path):
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd\n")
    for file in (tmp_path / "cpuinfo", tmp_path / "missing"):
        with pytest.raises(EngineError, match=r"^expected an x86-64 processor under Linux"):
            cpu_level(file)
