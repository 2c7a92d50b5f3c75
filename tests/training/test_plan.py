"""What is not tried with a model, and why."""

from types import SimpleNamespace

import keras
import pytest

from tfperf.training import plan
from tfperf.training.plan import CHANGES


@pytest.fixture
def with_bfloat16(monkeypatch):
    """A processor with instructions for bfloat16."""
    here = SimpleNamespace(instructions_for=lambda _: ["avx512_bf16"], accelerators=())
    monkeypatch.setattr(plan, "Environment", SimpleNamespace(here=lambda: here))


LAYERS = {
    "one": lambda: [keras.layers.Flatten(), keras.layers.Dense(3)],
    "with a softmax": lambda: [keras.layers.Dense(3), keras.layers.Softmax()],
    "two": lambda: [keras.layers.Dense(4), keras.layers.Dense(3)],
    "within another": lambda: [keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]), keras.layers.Dense(3)],
    "of its own": lambda: [keras.layers.Dense(4, dtype="mixed_bfloat16"), keras.layers.Dense(3)],
}


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ("one", "no layer computes with weights before those that give the outputs, which stay float32"),
        ("with a softmax", "no layer computes with weights before those that give the outputs, which stay float32"),
        ("two", None),
        ("within another", None),
        ("of its own", "the model has a policy of its own already: mixed_bfloat16"),
    ],
)
def test_half_precision_is_for_models_with_hidden_layers(with_bfloat16, layers, reason):
    model = keras.Sequential([keras.Input((8,)), *LAYERS[layers]()])
    assert CHANGES["mixed_bfloat16"].why_not(model) == reason
