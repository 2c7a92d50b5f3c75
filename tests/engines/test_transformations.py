"""Transformed nets answer as they did in every engine that transforms them, and the runner says what was done."""

import keras
import numpy as np
import pytest

from tfperf.engines import ENGINES, TRANSFORMATIONS, Plan, build, check_runner, find_engine
from tfperf.engines.building import applicable
from tfperf.engines.conversions import Conversions
from tfperf.errors import EngineError, ExportError
from tfperf.exports.servable import Servable

FOLD, FUSE, CONSTANT, BATCH = TRANSFORMATIONS
ENDS = {"graph", "xla", "saved_model", "c_api", "frozen", "xla_aot"}
COMBINATIONS = [(FOLD,), (FUSE,), (CONSTANT,), (FOLD, FUSE), (FOLD, FUSE, CONSTANT)]
CASES = [
    (engine.name, combination)
    for engine in ENGINES
    for combination in (COMBINATIONS if not engine.compiled else COMBINATIONS[3:])  # compiling takes long
    if set(combination) <= set(engine.transformations)
]


@pytest.fixture(scope="module")
def servable():
    """Three normalizations, of which two can be folded, with random statistics."""
    keras.utils.set_random_seed(5)
    norm = {"beta_initializer": "normal", "moving_mean_initializer": "normal"}
    stack = [keras.layers.Conv2D(8, 3, use_bias=False), keras.layers.BatchNormalization(**norm), keras.layers.ReLU()]
    stack += [keras.layers.BatchNormalization(**norm), keras.layers.DepthwiseConv2D(3)]
    stack += [keras.layers.BatchNormalization(**norm), keras.layers.Flatten(), keras.layers.Dense(6)]
    net = keras.Sequential([keras.Input((8, 8, 3), name="images"), *stack], name="cnn")
    generator = np.random.default_rng(0)
    for weight in net.weights:
        if weight.name in ("gamma", "moving_variance"):
            weight.assign(generator.uniform(0.5, 2, weight.shape))
    return Servable.from_net(net)


def plan_of(engine, transformations, **settings):
    if find_engine(engine).fixed_batch:
        settings["batch"] = 3
    return Plan(engine=engine, transformations=transformations, **settings)


def test_the_catalog_says_who_transforms():
    assert {engine.name for engine in ENGINES if FOLD in engine.transformations} == ENDS
    assert not any(engine.name in ENDS for engine in ENGINES if BATCH in engine.transformations)
    constants = {engine.name for engine in ENGINES if CONSTANT in engine.transformations}
    assert constants == ENDS - {"frozen", "xla_aot"}  # whose variables are constants already


@pytest.mark.parametrize(
    ("engine", "combination"), CASES, ids=lambda part: part if isinstance(part, str) else len(part)
)
def test_answers_stay_and_the_proof_says_what_was_done(engine, combination, servable, cache):
    words = {
        FOLD: "2 of 3 batch normalizations folded",
        FUSE: f"{1 if FOLD in combination else 3} of 3 batch normalizations fused",
        CONSTANT: f"{10 if FOLD in combination else 17} variables became constants",
    }
    with build(servable, plan_of(engine, combination), cache=cache) as runner:
        assert {key: runner.proof.get(key) for key in (FOLD, FUSE, CONSTANT)} == {
            key: words[key] if key in combination else None for key in (FOLD, FUSE, CONSTANT)
        }
        assert {"precision", "threads"} <= runner.proof.keys()
        arrays = servable.signature.random_inputs(3)
        assert check_runner(runner, arrays, servable.reference(arrays)).relative_error <= 1e-5


@pytest.mark.parametrize("engine", ["graph", "saved_model", "frozen"])
def test_in_lower_precision_too(engine, servable, cache):
    arrays = servable.signature.random_inputs(3)
    with build(servable, plan_of(engine, (FOLD, FUSE), precision="bfloat16"), cache=cache) as runner:
        agreement = check_runner(runner, arrays, servable.reference(arrays))
        assert agreement.relative_error > 1e-4
        assert "bfloat16" in runner.proof["precision"]
        assert {FOLD, FUSE} <= runner.proof.keys()


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.name not in ENDS], ids=lambda e: e.name)
def test_an_engine_without_transformations_refuses_them(engine, servable, tmp_path):
    known = ", ".join(engine.transformations) or "none"
    words = rf"^expected transformations of {engine.name} \({known}\)\. Received: fold_batch_norm, constant_weights$"
    with pytest.raises(EngineError, match=words):
        build(servable, plan_of(engine.name, (FOLD, CONSTANT)), cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_constants_are_no_transformation_of_what_is_constant():
    words = r"^expected transformations of frozen \(fold_batch_norm, fuse_batch_norm\)\. Received: constant_weights$"
    with pytest.raises(EngineError, match=words):
        find_engine("frozen").check(Plan(engine="frozen", transformations=(FOLD, CONSTANT)))


@pytest.mark.parametrize("engine", sorted(ENDS))
def test_a_transformation_that_changes_nothing_is_refused(engine, servable_of, tmp_path):
    for transformation, done in ((FOLD, "folded"), (FUSE, "fused")):
        with pytest.raises(EngineError, match=rf"^net 'two' has no batch normalization that can be {done}$"):
            build(servable_of("two"), plan_of(engine, (transformation,)), cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_net_without_weights_has_no_constants(tmp_path):
    net = keras.Sequential([keras.Input((3,)), keras.layers.ReLU()], name="relu")
    with pytest.raises(EngineError, match=r"^net 'relu' has no variables that can become constants$"):
        build(net, plan_of("saved_model", (CONSTANT,)), cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_transformation_is_another_conversion(servable, tmp_path):
    conversions = Conversions(servable, tmp_path)
    plans = [plan_of("frozen", combination) for combination in ((), (FOLD,), (FUSE,), (FOLD, FUSE))]
    folders = [conversions.folder(plan) for plan in plans]
    assert len(set(folders)) == 4
    assert [conversions.folder(plan) for plan in plans] == folders
    by_python, by_c = (conversions.folder(plan_of(engine, (FOLD,))) for engine in ("saved_model", "c_api"))
    assert by_python == by_c


def test_what_would_change_a_net_is_told(servable, servable_of, tmp_path):
    assert applicable(servable) == applicable(servable.net) == TRANSFORMATIONS
    assert applicable(servable_of("cnn")) == TRANSFORMATIONS
    assert applicable(servable_of("two")) == (CONSTANT, BATCH)
    assert applicable(keras.Sequential([keras.Input((3,)), keras.layers.ReLU()])) == (BATCH,)
    after_relu = [keras.layers.ReLU(), keras.layers.BatchNormalization()]
    assert applicable(keras.Sequential([keras.Input((4, 4, 3)), *after_relu])) == (FUSE, CONSTANT, BATCH)
    after_dense = [keras.layers.Dense(4), keras.layers.BatchNormalization()]
    assert applicable(keras.Sequential([keras.Input((3,)), *after_dense])) == (FOLD, CONSTANT, BATCH)
    servable.save(tmp_path)
    assert applicable(Servable.from_saved_model(tmp_path)) == (CONSTANT, BATCH)


def test_of_a_saved_model_only_the_weights_are_transformed(servable, tmp_path, cache):
    servable.save(tmp_path / "saved")
    saved = Servable.from_saved_model(tmp_path / "saved", name="theirs")
    for engine in ("graph", "frozen"):
        with pytest.raises(ExportError, match=r"^expected a Keras net, for its batch normalizations; 'theirs' is a gr"):
            build(saved, plan_of(engine, (FOLD,)), cache=cache)
    arrays = saved.signature.random_inputs(4)
    for engine in ("graph", "xla", "saved_model"):
        with build(saved, plan_of(engine, (CONSTANT,)), cache=cache) as runner:
            assert runner.proof[CONSTANT] == "17 variables became constants"
            assert check_runner(runner, arrays, saved.reference(arrays)).relative_error <= 1e-5


def test_a_saved_model_of_constants_is_smaller(servable, cache):
    sizes = {}
    for combination in ((), (FOLD,), (CONSTANT,)):
        with build(servable, plan_of("saved_model", combination), cache=cache) as runner:
            sizes[combination] = runner.size
    assert sizes[CONSTANT,] < sizes[()] > sizes[FOLD,]


def test_tables_of_numbers_cannot_be_constants(tmp_path):
    """What cannot become a constant must not become another input."""
    stack = [keras.layers.IntegerLookup(vocabulary=[3, 5]), keras.layers.Embedding(3, 2)]
    net = keras.Sequential([keras.Input((1,), dtype="int64"), *stack])
    for plan in (plan_of("frozen", ()), plan_of("graph", (CONSTANT,))):
        with pytest.raises(EngineError, match=r"^expected variables that can become constants, .*table_handle cannot$"):
            build(net, plan, cache=tmp_path)
