"""tfperf.nets.catalog: names, options, seeds, errors."""

import inspect
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfperf.nets
from tfperf.nets import NAMES, get_net


def test_importing_the_package_imports_no_framework() -> None:
    program = "import sys, tfperf.nets; print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    repository = Path(tfperf.nets.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def test_names_are_the_architecture_files() -> None:
    files = {path.stem for path in Path(tfperf.nets.__file__).parent.glob("*.py")}
    assert files - {"__init__", "arguments", "catalog"} == set(NAMES)


def test_the_table_of_the_docstring_is_true() -> None:
    rows = re.findall(r"^ *(\w+) +(\(.*?\)) (?:float|int32 ids) +(\(.*?\))", inspect.getdoc(get_net) or "", re.M)
    assert [name for name, _, _ in rows] == list(NAMES)
    for name, input_shape, output_shape in rows:
        net = get_net(name)
        assert (str(net.input_shape[1:]), str(net.output_shape[1:])) == (input_shape, output_shape)


def test_the_first_net_is_the_default() -> None:
    assert get_net().name == NAMES[0] == "mlp"


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("resnet", "resnet18"),
        ("LeNet", "lenet"),
        ("cnn", "mnist_cnn"),
        ("tranformer", "transformer"),
        (None, ""),
    ],
)
def test_an_unknown_name_lists_the_names_and_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(ValueError, match="expected the name of a net") as raised:
        get_net(typed)
    message = str(raised.value)
    assert all(name in message for name in NAMES)
    assert f"Received: name={typed!r}" in message
    assert f"The nearest is '{nearest}" in message


@given(typed=st.text(max_size=20).filter(lambda text: text not in NAMES))
def test_any_other_text_is_a_value_error(typed: str) -> None:
    with pytest.raises(ValueError, match=r"The nearest is '\w+'"):
        get_net(typed)


def test_an_unknown_option_lists_the_options_and_the_nearest() -> None:
    with pytest.raises(TypeError) as raised:
        get_net("mlp", hiden_units=(3,))
    assert str(raised.value) == (
        "expected an option of 'mlp', one of: seed, input_shape, hidden_units, num_classes. "
        "Received: hiden_units=(3,). The nearest is 'hidden_units'"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_classes", [0, -3, 2.0, "2", True, None])
def test_num_classes_is_a_positive_whole_number(name: str, num_classes: object) -> None:
    with pytest.raises(ValueError, match=rf"expected num_classes .* Received: num_classes={num_classes!r}$"):
        get_net(name, num_classes=num_classes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "input_shape", [(), (28, 28), (28, 28, 1, 1), (0,), (28, 28, -1), (28.0, 28, 1), 28, None, "a"]
)
def test_input_shape_has_the_rank_of_the_net(name: str, input_shape: object) -> None:
    with pytest.raises(ValueError, match="expected input_shape") as raised:
        get_net(name, input_shape=input_shape)
    assert str(raised.value).endswith(f"Received: input_shape={input_shape!r}")


def test_numbers_of_numpy_and_lists_of_json_are_numbers_too() -> None:
    net = get_net("mlp", input_shape=[np.int64(7)], num_classes=np.int32(3), seed=np.int64(1))
    assert (net.input_shape, net.output_shape) == ((None, 7), (None, 3))


# ---------------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    one, same, other = (get_net(name, seed=seed).get_weights() for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_without_a_seed_weights_differ(name: str) -> None:
    one, other = (get_net(name).get_weights() for _ in range(2))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_no_two_weights_of_one_net_are_drawn_alike(name: str) -> None:
    drawn = [weight.numpy() for weight in get_net(name, seed=0).weights if weight.numpy().std() > 0]
    assert len({array.ravel()[:16].tobytes() for array in drawn}) == len(drawn) > 1


def test_a_mixed_policy_starts_from_the_weights_of_float32(use_policy) -> None:
    expected = get_net("lenet", seed=3).get_weights()
    use_policy("mixed_bfloat16")
    assert all(np.array_equal(a, b) for a, b in zip(expected, get_net("lenet", seed=3).get_weights(), strict=True))


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(ValueError, match="expected seed to be a whole number, 0 or more"):
        get_net(seed=seed)


def global_random_state() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_leaves_the_random_state_of_the_caller(name: str) -> None:
    def draw_around(build: bool) -> list[object]:
        keras.utils.set_random_seed(11)
        keras.random.normal((2,))
        if build:
            before = global_random_state()
            get_net(name, seed=1)
            assert global_random_state() == before
        return [keras.random.normal((2,)).numpy().tolist(), tf.random.normal((2,)).numpy().tolist()]

    saved = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        assert draw_around(build=True) == draw_around(build=False)
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002


def test_an_error_while_building_restores_the_random_state_too() -> None:
    before = global_random_state()
    with pytest.raises(ValueError, match="num_classes"):
        get_net(seed=1, num_classes=0)
    assert global_random_state() == before


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**70))
def test_any_seed_works(seed: int) -> None:
    one, same = (get_net(input_shape=(4,), hidden_units=(), seed=seed).get_weights()[0] for _ in range(2))
    assert np.array_equal(one, same)
