"""From what a user types to a net; and every way to type it wrong, in one line."""

import keras
import numpy as np
import pytest

from tfperf.errors import ExportError
from tfperf.exports import export, open_model

# Goes with the first TensorFlow whose EagerTensor.__array__ takes `copy`.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

CODE = """
import keras
import numpy as np
from helper import WIDTH

class Sub(keras.Model):
    def __init__(self):
        super().__init__(name="sub")
        self.dense = keras.layers.Dense(2)
    def call(self, x):
        return self.dense(keras.ops.cast(x, "float32"))

def build():
    return keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2)], name="built")
def with_example():
    return Sub(), np.zeros((1, 3), "int64")
def fails():
    raise RuntimeError("not today")
def text():
    return "text"
made = build()
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "helper.py").write_text("WIDTH = 3\n")
    (tmp_path / "code_of_user.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    return tmp_path / "code_of_user.py"


def test_each_form_is_opened(code, tmp_path):
    (tmp_path / "mlp").mkdir()  # a name is a name, whatever lies beside
    assert open_model("mlp").name == "mlp"
    assert open_model(f"{code}:build").name == "built"
    assert open_model("code_of_user:build").name == "built"
    assert open_model(f"{code}:made").name == "built"
    assert open_model(f"{code}:with_example").signature.inputs[0].dtype == "int64"
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    net.save(tmp_path / "saved.keras")
    assert open_model(str(tmp_path / "saved.keras")).name == "saved"
    folder = export(net, tmp_path, name="exported")
    assert open_model(str(folder)).name == "exported"


TYPES = """
import keras
import numpy as np

class Ids(keras.Model):
    def __init__(self):
        super().__init__(name="ids")
        self.embed, self.dense = keras.layers.Embedding(9, 2), keras.layers.Dense(2)
    def call(self, ids, floats=None, training=False):
        return keras.ops.concatenate([self.embed(ids)[:, 0], self.dense(floats)], 1)

class Nest(Ids):
    def call(self, inputs):
        return {"out": super().call(inputs["ids"], inputs["floats"])}

def arrays():
    net = Ids()
    net(np.zeros((1, 3), "int64"), floats=np.zeros((1, 4)), training=False)
    return net
def arrays_in_another_order():
    net = Ids()
    net(floats=np.zeros((1, 4)), ids=np.zeros((1, 3), "int64"))
    return net
def symbols():
    net = Nest()
    net({"ids": keras.Input((3,), dtype="int32"), "floats": keras.Input((4,))})
    return net
def inside_another():
    inner = Nest()
    nest = {"ids": keras.Input((3,), dtype="uint8", name="ids"), "floats": keras.Input((4,), name="floats")}
    inner.name = "inner"
    return keras.Model(nest, inner(nest))
def one():
    class One(keras.Model):
        def call(self, mask):
            return keras.ops.cast(mask, "float32")
    net = One()
    net(np.zeros((1, 3), bool))
    return net
def odd():
    class Odd:
        shape, dtype = (1, 3), "odd"
    class Net(keras.Model):
        def call(self, x, odd=None):
            return x[:, :2]
    net = Net()
    net(np.zeros((1, 4)), odd=Odd())
    return net
def fails_once():
    net = Ids()
    try:
        net("text")
    except Exception:
        pass
    return arrays()
early = arrays()
"""


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        ("arrays", {"ids": "int64", "floats": "float32"}),
        ("arrays_in_another_order", {"ids": "int64", "floats": "float32"}),
        ("symbols", {"floats": "float32", "ids": "int32"}),
        ("inside_another", {"floats": "float32", "ids": "uint8"}),
        ("fails_once", {"ids": "int64", "floats": "float32"}),
        ("early", {"ids": "int64", "floats": "float32"}),
        ("one", {"inputs": "bool"}),
        ("odd", {"inputs": "float32"}),  # what cannot be noted is left to Keras
    ],
)
def test_the_inputs_of_a_subclass_are_those_that_its_code_called_it_with(tmp_path, builder, expected):
    (tmp_path / "types_of_user.py").write_text(TYPES)
    servable = open_model(f"{tmp_path / 'types_of_user.py'}:{builder}")
    assert {form.name: form.dtype for form in servable.signature.inputs} == expected
    (answer,) = servable.reference(servable.signature.random_inputs(2))
    assert len(answer) == 2
    assert "__call__" not in vars(keras.Model)


def test_a_seed_makes_the_same_net():
    x = np.ones((1, 512), "float32")
    first, again, other = (open_model("mlp", seed=seed).reference([x])[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nonsense", "which does not exist"),
        ("nonsense.keras", "does not exist"),
        ("nonsense.py:build", "does not exist"),
        ("no.such.module:build", "is not found"),
        ("1/2:build", "no module"),
        ("{code}:missing", "expected a function of code_of_user"),
        ("{code}:fails", r"RuntimeError: not today \(.*code_of_user.py:\d+\)"),
        ("{code}:text", "Received: str"),
        ("{folder}", "expected a SavedModel"),
        ("{folder}/broken.keras", "that Keras can load"),
        ("{folder}/broken.py:build", "SyntaxError"),
        ("{folder}/lambda.keras", "never run"),
    ],
)
def test_what_is_no_model_is_told_in_one_line(code, tmp_path, model, message):
    (tmp_path / "broken.keras").write_text("no zip")
    (tmp_path / "broken.py").write_text("def :")
    keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x)]).save(tmp_path / "lambda.keras")
    with pytest.raises(ExportError, match=message) as caught:
        open_model(model.format(code=code, folder=tmp_path))
    assert "\n" not in str(caught.value)


def test_a_signature_is_of_a_saved_model_only():
    with pytest.raises(ExportError, match="SavedModel's folder"):
        open_model("mlp", signature="other")
