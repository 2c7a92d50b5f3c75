"""`tfperf.tune_training` and `tfperf tune --train`: the answer, the script, the page; bad input writes nothing."""

import importlib.util
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import tfperf
from tests.fixtures.training import BRIEF, CODE, Told, seconds_of, start_here
from tfperf.cli import main
from tfperf.errors import EngineError, ExportError
from tfperf.measure.results import read_document
from tfperf.search.training.outcome import TrainingOutcome
from tfperf.training.plan import TrainingPlan
from tfperf.tuning import training, training_script

SECONDS = 240
"""For a process to end, on a machine that does much else."""

DRIVER = f"""
import sys
from tfperf.importing import load_tensorflow
load_tensorflow()
from tfperf.search.training import strategy
vars(strategy).update({BRIEF})
from tfperf.cli import main
main(["tune", *sys.argv[1:]])
"""
"""`tfperf tune` as it is, with short measurements."""


@pytest.fixture
def here(monkeypatch):
    """Trials in this process."""
    monkeypatch.setattr(training.TrainingProcess, "start", classmethod(lambda _, plan, **limits: start_here(plan)))


@pytest.fixture
def told(monkeypatch, brief_training):
    """Trials that take as long as they are told to; a function that has their data be batches."""

    def told(takes_arrays=True):
        def start(_, plan, **limits):
            return Told(plan, seconds_of, takes_arrays=takes_arrays)

        monkeypatch.setattr(training.TrainingProcess, "start", classmethod(start))

    told()
    return told


@pytest.fixture
def outcome(told, task):
    return tfperf.tune_training(*task).outcome


def test_the_command_finds_a_plan_and_its_script_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "small.py").write_text(CODE)
    arguments = ["small.py:build", "--train", "--data", "small.py:data", "--time-limit", "1", "--report", "r.html"]
    command = [sys.executable, "-c", DRIVER, *arguments]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert told.returncode == 0, told.stderr
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert lines[-1]["ended"] == "time limit"
    assert lines[-1]["files"] == ["results/tune_training_small.json", "results/train_small.py", "r.html"]
    found = read_document(tmp_path / "results/tune_training_small.json", TrainingOutcome)
    assert found.winner == lines[-1]["winner"]
    assert [line["trial"] for line in lines[:-1]] == [trial.name for trial in found.trials]
    assert "tune --train: <bdi>small</bdi>" in (tmp_path / "r.html").read_text()
    script = tmp_path / "results/train_small.py"
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr
    assert keras.saving.load_model(tmp_path / "trained.keras").name == "small"


def test_the_winner_is_applied_to_a_model_of_yours(told, task):
    tuned = tfperf.tune_training(*task, changes=("fast_optimizer",))
    model, (x, y) = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), _examples()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = tuned.best.apply(model, x[:32]).fit(model, (x, y), epochs=2, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]
    assert str(tuned).startswith(tuned.outcome.winner) or "what you have is the best already" in str(tuned)


@pytest.mark.usefixtures("told")
def test_a_model_and_arrays_of_this_program_are_tuned():
    model, data = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)], name="own"), _examples()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tuned = tfperf.tune_training(model, data, changes=(), threads=(), batch_size=64)
    assert (tuned.outcome.model, tuned.outcome.opened_as) == ("told", "given from Python")
    assert "model = ...  # yours, compiled" in tuned.best.script()


def test_a_data_set_of_batches_is_fed_by_fit_alone(told, task):
    told(takes_arrays=False)
    model, data = task
    tuned = tfperf.tune_training(model, data.replace(":data", ":batches"))
    assert {trial.plan.loop for trial in tuned.outcome.trials} == {"fit"}
    assert {trial.plan.batch_size for trial in tuned.outcome.trials} == {None}
    assert "model.fit(batches, epochs=10)" in tuned.best.script()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda model, data: (model, data + "x"), EngineError, "expected a function of small"),
        (lambda model, data: (model.replace("build", "data"), data), EngineError, "to return a keras.Model"),
        (lambda model, data: ("mlp", data), EngineError, "expected data that the model takes"),
        (lambda model, data: (model, "nothing.npz"), EngineError, "expected an .npz file with x and y"),
        (lambda model, data: (model, "nothing"), EngineError, "expected a data set"),
    ],
)
@pytest.mark.usefixtures("here", "brief_training")
def test_what_cannot_be_trained_is_one_line(task, change, error, words):
    with pytest.raises((error, ExportError), match=words) as raised:
        tfperf.tune_training(*change(*task))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("told")
def test_a_model_of_this_program_is_the_same_when_it_is_asked_again(tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        digests.append(training._digest(training._stored_model(model, tmp_path / name)))
    assert digests[0] == digests[1]
    model.set_weights([weight + 1 for weight in model.get_weights()])
    (tmp_path / "c").mkdir()
    assert training._digest(training._stored_model(model, tmp_path / "c")) != digests[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mlp", "--train"], "expected --data with --train"),
        (["mlp", "--data", "mnist"], "expected --train with --data"),
        (["mlp", "--train", "--data", "mnist", "--engine", "litert"], "--train does not take --engine"),
        (["mlp", "--train", "--data", "mnist", "--batch", "0"], "expected --batch to be whole numbers"),
        (
            ["mlp", "--train", "--data", "mnist", "--precision", "int8"],
            "expected --precision to be of float32, bfloat16",
        ),
        (["mlp", "--train", "--data", "mnist", "--report", "r.pdf"], "r.pdf"),
    ],
)
def test_bad_arguments_are_one_line_and_write_nothing(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["tune", *arguments])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_script_says_each_thing_on_a_line(outcome):
    plan = TrainingPlan(
        changes=("mixed_bfloat16", "fuse", "fast_optimizer", "jit_compile"),
        loop="compiled",
        threads=2,
        variables=("huge_pages",),
        batch_size=64,
    )
    text = training_script.script(outcome, plan)
    compile(text, "script", "exec")
    for line in (
        "from tfperf.training import fast_optimizer, fit, fuse, use_mixed_precision",
        "from small import build",
        "tf.config.threading.set_intra_op_parallelism_threads(2)",
        "inputs = keras.tree.map_structure(lambda array: array[:64], x)",
        "model(inputs)  # builds it",
        "use_mixed_precision(model)",
        "fuse(model, inputs)",
        "fast_optimizer(model.optimizer)",
        "model.jit_compile = True",
        "fit(model, x, y, batch_size=64, epochs=10)",
        "Start it with: GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python FILE",
    ):
        assert line in text.splitlines(), line


UNBUILT = """
class Net(keras.Model):
    def __init__(self):
        super().__init__(name="unbuilt")
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)

def subclassed():
    net = Net()
    net.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net

def sequential():
    net = keras.Sequential([keras.layers.Dense(3)])
    net.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net
"""


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # Keras, of every data set
@pytest.mark.parametrize("build", ["subclassed", "sequential"])
@pytest.mark.parametrize("takes_arrays", [True, False])
def test_the_script_trains_a_model_that_is_built_only_when_it_is_trained(
    outcome, tmp_path, monkeypatch, build, takes_arrays
):
    place = tmp_path / f"unbuilt_{build}_{takes_arrays}.py"  # each has a module of its own
    place.write_text(CODE.replace("16384", "256") + UNBUILT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(training_script, "EPOCHS", 1)
    data = f"{place}:{'data' if takes_arrays else 'batches'}"
    update = {"opened_as": f"{place}:{build}", "data": data, "takes_arrays": takes_arrays}
    plan = TrainingPlan(changes=("mixed_bfloat16", "fuse", "fast_optimizer"))
    names = {"keras": keras}
    exec(training_script.script(outcome.model_copy(update=update), plan), names)
    assert names["model"].built


def test_the_script_of_a_plan_without_changes_takes_no_batch(outcome):
    assert "inputs" not in training_script.script(outcome, TrainingPlan(threads=2))


def _examples():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((256, 8)).astype("float32")
    return x, x[:, :3].argmax(axis=1)


def test_sample_weights_are_in_the_script_too(outcome, tmp_path, monkeypatch):
    (tmp_path / "weighted.py").write_text(
        CODE + "def weighted():\n    x, y = data()\n    return x[:64], y[:64], (np.arange(64) % 2).astype('float32')\n"
    )
    update = {
        "takes_weights": True,
        "opened_as": f"{tmp_path}/weighted.py:build",
        "data": f"{tmp_path}/weighted.py:weighted",
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_script, "EPOCHS", 1)
    for loop in ("fit", "compiled"):
        names = {"keras": keras}
        exec(training_script.script(outcome.model_copy(update=update), TrainingPlan(loop=loop)), names)
        assert names["sample_weight"].sum() == 32
    stored = update | {"data": "examples.npz"}
    text = training_script.script(outcome.model_copy(update=stored), TrainingPlan())
    assert 'x, y, sample_weight = stored["x"], stored["y"], stored["sample_weight"]' in text
    assert "model.fit(x, y, sample_weight=sample_weight, batch_size=32" in text


@pytest.mark.parametrize(("reshaped", "words"), [((784,), ").reshape(-1, 784) / 255"), (None, ") / 255")])
def test_images_are_reshaped_only_for_a_model_that_takes_them_so(outcome, reshaped, words):
    update = {"data": "fashion_mnist", "reshaped": reshaped}
    text = training_script.script(outcome.model_copy(update=update), TrainingPlan())
    assert f'x = dataset.train_images.astype("float32"{words}' in text


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A folder with a module, and one beside it that it imports."""
    (tmp_path / "mine.py").write_text("import keras\nfrom layers_of_mine import Layer\n")
    (tmp_path / "layers_of_mine.py").write_text("Layer = 1\n")
    (tmp_path / "unused.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", ["mine.py:build", "mine:build"])
def test_a_change_of_code_begins_another_search(own_code, source):
    def digest_after(name):
        file = own_code / name
        file.write_text(file.read_text() + "# changed\n")
        return training._digest(source)

    first = training._digest(source)
    assert training._digest(source) == first != source
    assert digest_after("unused.py") == first
    digests = {first, digest_after("mine.py"), digest_after("layers_of_mine.py")}
    assert len(digests) == 3
    assert not {"mine", "layers_of_mine"} & sys.modules.keys(), "nothing is imported"


def test_the_digest_of_a_package_counts_its_modules(own_code):
    package = own_code / "package_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError\n")
    (package / "nets.py").write_text("from .parts import part\n")
    (package / "parts.py").write_text("part = 1\n")
    first = training._digest("package_of_mine.nets:build")
    (package / "parts.py").write_text("part = 2\n")
    assert training._digest("package_of_mine.nets:build") != first


def test_code_that_python_cannot_read_has_a_digest(own_code):
    (own_code / "mine.py").write_text("def (:\n")
    assert training._digest("mine.py:build") != "mine.py:build"
    assert training._digest("no_such_module:build") == "no_such_module:build"


@pytest.fixture
def helpers(own_code):
    """A folder without __init__.py, whose modules a file imports."""
    (own_code / "helpers_of_mine").mkdir()
    (own_code / "helpers_of_mine/nets.py").write_text("from .parts import part\n")
    (own_code / "helpers_of_mine/parts.py").write_text("part = 1\n")
    return own_code / "helpers_of_mine"


@pytest.mark.parametrize("line", ["from helpers_of_mine.nets import net", "from helpers_of_mine import nets"])
@pytest.mark.parametrize("changed", ["nets.py", "parts.py"])
def test_modules_of_a_folder_without_init_count(own_code, helpers, line, changed):
    (own_code / "mine.py").write_text(f"def build():\n    {line}\n")
    first = training._digest("mine.py:build")
    with (helpers / changed).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert training._digest("mine.py:build") != first


def test_a_module_of_a_folder_without_init_is_found(own_code, helpers):
    (helpers / "nets.py").write_text("from helpers_of_mine import parts\nimport layers_of_mine\n")
    digests = {"helpers_of_mine.nets:build", training._digest("helpers_of_mine.nets:build")}
    for file in (helpers / "nets.py", helpers / "parts.py", own_code / "layers_of_mine.py"):
        with file.open("a", encoding="utf-8") as opened:
            opened.write("# changed\n")
        digests.add(training._digest("helpers_of_mine.nets:build"))
    assert len(digests) == 5
    assert training._digest("helpers_of_mine:build") == "helpers_of_mine:build", "it has no file"


def test_a_module_that_a_finder_of_an_editable_install_finds_has_a_digest(own_code, monkeypatch):
    package = own_code / "src/installed_of_mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError\n")
    (package / "nets.py").write_text("from installed_of_mine.parts import part\n")
    (package / "parts.py").write_text("part = 1\n")

    class Finder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name != "installed_of_mine":
                return None
            return importlib.util.spec_from_file_location(name, package / "__init__.py")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    digests = {"installed_of_mine.nets:build", training._digest("installed_of_mine.nets:build")}
    for name in ("__init__.py", "nets.py", "parts.py"):
        with (package / name).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        digests.add(training._digest("installed_of_mine.nets:build"))
    assert len(digests) == 5
    assert "installed_of_mine" not in sys.modules, "nothing is imported"


def test_of_installed_packages_only_the_module_s_own_is_read(own_code, monkeypatch):
    for package in ("one_of_mine", "other_of_mine"):
        (own_code / package).mkdir()
        (own_code / package / "__init__.py").write_text("")
    (own_code / "one_of_mine/nets.py").write_text("import one_of_mine.parts, other_of_mine\n")
    (own_code / "one_of_mine/parts.py").write_text("")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(own_code)])
    first = training._digest("one_of_mine.nets:build")
    (own_code / "other_of_mine/__init__.py").write_text("x = 1\n")
    assert training._digest("one_of_mine.nets:build") == first
    (own_code / "one_of_mine/parts.py").write_text("x = 1\n")
    assert training._digest("one_of_mine.nets:build") != first


@pytest.mark.parametrize("code", [b"def (:\n", b"x = '\\d'\n", b"\0", b"# coding: no-such\n", b"\xff"])
def test_modules_beside_that_python_cannot_read_count_as_they_are(own_code, code):
    first = training._digest("mine.py:build")
    (own_code / "layers_of_mine.py").write_bytes(code)
    assert training._digest("mine.py:build") not in (first, "mine.py:build")
