"""Functions in C++ that XLA calls: compiled when they are needed, and done without where they cannot be."""

import functools
import platform
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfperf.native.compiling import tensorflow_folder
from tfperf.processes import run
from tfperf.training import CompiledLayerNormalization, xla_function


@pytest.fixture
def asked_anew(monkeypatch):
    """Whether functions can be called is asked once in each process, and once more here."""
    monkeypatch.setattr(xla_function, "is_there", functools.cache(xla_function.is_there.__wrapped__))


def test_without_a_compiler_xla_s_own_code_is_taken_and_a_warning_says_so(asked_anew, monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    inputs = tf.constant(np.random.default_rng(0).normal(size=[2, 3, 4]), tf.float32)
    plain, fused = keras.layers.LayerNormalization(), CompiledLayerNormalization()
    told = r"^training goes on without layer_norm\.cc, and is slower: expected a compiler"
    with pytest.warns(UserWarning, match=told), tf.GradientTape():
        found = fused(inputs, training=True)
    np.testing.assert_allclose(found, plain(inputs), atol=1e-6)
    with tf.GradientTape():
        fused(inputs, training=True)  # and does not warn again


def test_where_there_is_a_gpu_nothing_is_compiled(asked_anew, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    monkeypatch.setattr(xla_function, "compile_once", None)  # it would be called
    assert not xla_function.is_there("layer_norm")


def test_without_a_place_for_a_cache_xla_s_own_code_is_taken(asked_anew, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", "/dev/null/cache")
    with pytest.warns(UserWarning, match=r"^training goes on without layer_norm\.cc, and is slower: .*/dev/null/cache"):
        assert not xla_function.is_there("layer_norm")


def test_a_source_that_does_not_compile_is_done_without(asked_anew, monkeypatch, tmp_path):
    (tmp_path / "broken.cc").write_text("int answer() { return other; }\n")
    monkeypatch.setattr(xla_function, "SOURCES", tmp_path)
    with pytest.warns(
        UserWarning, match=r"^training goes on without broken\.cc, and is slower: the compiler, on broken"
    ):
        assert not xla_function.is_there("broken")


def test_a_function_that_nobody_registered_is_an_error_when_it_is_called():
    @tf.function(jit_compile=True, autograph=False)
    def calling(given):
        return xla_function.call("tfperf_no_such_function", [given], [0])

    with pytest.raises(tf.errors.OpError, match="tfperf_no_such_function"):
        calling(tf.ones([2, 3]))


def test_a_function_with_operands_of_the_wrong_kind_is_an_error():
    assert xla_function.is_there("layer_norm")

    @tf.function(jit_compile=True, autograph=False)
    def calling(rows, scale):
        return xla_function.call("tfperf_layer_norm_f32", [rows, scale], [0], epsilon=1e-3)

    with pytest.raises(tf.errors.OpError, match="expected 3 but got 2"):
        calling(tf.ones([2, 3]), tf.ones([3]))


def test_a_result_has_the_form_of_an_operand_or_one_that_is_given():
    assert xla_function.is_there("activation")

    @tf.function(jit_compile=True, autograph=False)
    def calling(given):
        form = tf.TensorSpec([2, 3], tf.float32)
        return [xla_function.call("tfperf_relu_f32", [given], [result])[0] for result in (0, form)]

    for found in calling(tf.constant([[1.0, -1, 2], [-2, 3, -3]])):
        np.testing.assert_array_equal(found, [[1, 0, 2], [0, 3, 0]])


def sources_with_loops_for_vectors():
    """Each source that says of loops that they are for vectors, and the lines where it does."""
    for path in sorted(xla_function.SOURCES.glob("*.cc")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if loops := [number for number, line in enumerate(lines, 1) if line.startswith("#pragma omp simd")]:
            yield pytest.param(path, loops, id=path.stem)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("source", "loops"), list(sources_with_loops_for_vectors()))
def test_loops_for_vectors_have_vectors_on_every_processor(source, loops, level, tmp_path):
    """GCC tells which loops it wrote for vectors. With AVX2 it did not where a loop compares, for a missing option."""
    compiler = shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("needs GCC on x86-64")
    options = [*xla_function.OPTIONS, f"-march={level}", f"-I{tensorflow_folder() / 'include'}"]
    command = [compiler, *options, "-fopt-info-vec-optimized", str(source), "-o", str(tmp_path / "made.so")]
    told = run(command, deadline=120, merged=True)
    assert told.code == 0, told.output
    pattern = rf"{re.escape(source.name)}:(\d+):\d+: optimized: loop vectorized"
    vectorized = {int(line) for line in re.findall(pattern, told.output)}
    for loop, following in zip(loops, [*loops[1:], loops[-1] + 7], strict=True):
        assert vectorized & set(range(loop, following)), f"line {loop + 1} has no vectors"
