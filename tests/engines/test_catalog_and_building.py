"""Which engines there are, what they need, and what `build` makes of a net and a plan."""

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import os
import re
import stat
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import keras
import numpy as np
import pytest

from tfperf import engines
from tfperf.engines import ENGINES, Plan, build, check_runner, find_engine, missing
from tfperf.engines.building import conversions_folder
from tfperf.engines.catalog import LAST, Engine, known_engines
from tfperf.errors import EngineError, TfperfError
from tfperf.exports.servable import Servable
from tfperf.measure.environment import PACKAGES
from tfperf.search.candidates import Candidates
from tfperf.search.question import Question
from tfperf.search.space import Space

THREADS = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
from tfperf.engines import Plan, build
from tfperf.errors import EngineError
from tfperf import get_net
tf.config.threading.set_intra_op_parallelism_threads(2)
tf.config.threading.set_inter_op_parallelism_threads(1)
net = get_net("mlp")
for engine in ("graph", "frozen"):
    print(build(net, Plan(engine=engine, threads=2), cache=Path(sys.argv[1])).proof["threads"])
    try:
        build(net, Plan(engine=engine, threads=3), cache=Path(sys.argv[1]))
    except EngineError as error:
        print(error)
"""


@pytest.fixture
def without(monkeypatch):
    """A function that makes importlib find no package of these names."""
    genuine = importlib.util.find_spec

    def without(*names):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name in names else genuine(name, *rest)
        )

    return without


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_each_engine_has_a_module_with_its_functions(engine):
    module = importlib.import_module(f"tfperf.engines.{engine.name}")
    if engine.format is None:
        assert list(inspect.signature(module.build).parameters) == ["servable", "plan"]
    else:
        assert len(inspect.signature(module.convert).parameters) == 4
        assert list(inspect.signature(module.load).parameters) == ["folder", "signature", "plan", "proof"]
    assert engine.about
    assert engine.precisions[0] == "float32"
    assert bool(engine.packages) == bool(engine.extra)


def test_extras_install_what_engines_import():
    """Distribution of an import name: as the installed packages themselves say."""
    required = importlib.metadata.requires("tfperf")
    provided = importlib.metadata.packages_distributions()
    for engine in ENGINES:
        if not engine.extra:
            continue
        listed = {re.split(r"[^\w-]", line)[0] for line in required if f'extra == "{engine.extra}"' in line}
        brought = listed | {
            re.split(r"[^\w-]", line)[0] for name in listed for line in importlib.metadata.requires(name) or []
        }
        for package in engine.packages:
            assert set(provided[package]) & brought, (engine.name, package)


def test_engines_of_installed_packages_are_known(planted, tmp_path):
    known = known_engines()
    assert known[: len(ENGINES)] == ENGINES
    names = [engine.name for engine in known[len(ENGINES) :]]
    assert {"honest", "equal", "slower", "wrong", "hang_in_convert"} <= set(names)
    assert len(names) == len(set(names))
    honest = find_engine("honest")
    assert (honest.format, honest.module) == ("planted", "planted")
    assert (missing(honest), honest.load_module().__name__) == (None, "planted")
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(2)])
    arrays = (np.ones((4, 3), "float32"),)
    with build(net, Plan(engine="honest"), cache=tmp_path / "cache") as runner:
        assert runner.proof["precision"] == "4 of 4 arrays in float32"
        np.testing.assert_allclose(runner(*arrays)[0], net(arrays[0]), rtol=1e-5)


def test_all_planted_engines_are_installed(planted):
    names = sorted(engine.name for engine in known_engines()[len(ENGINES) :])
    assert names == sorted(vars(importlib.import_module("planted").engines))


def test_an_engine_is_added_as_the_documentation_says(tmp_path, monkeypatch, servable_of):
    """With the files that docs/architecture.md shows, at most three."""
    document = Path(__file__).parents[2] / "docs" / "architecture.md"
    section = document.read_text(encoding="utf-8").partition("## How to add an engine")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d\. ", section, re.MULTILINE)
    assert 1 < len(steps) <= 3
    for name in re.findall(r"`(tfperf/[\w/]+\.py)`", section):
        assert name.endswith("NAME.py") or (document.parents[1] / name).is_file()
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", textwrap.dedent(section), re.DOTALL))
    (tmp_path / "my_engine.py").write_text(textwrap.dedent(blocks["python"]), encoding="utf-8")
    ((group, entries),) = tomllib.loads(textwrap.dedent(blocks["toml"]))["project"]["entry-points"].items()
    about = tmp_path / "my_engine-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_engine\nVersion: 1\n", encoding="utf-8")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    known_engines.cache_clear()
    try:
        mine = find_engine("mine")
        assert (mine.family, mine.release, mine.exported_as) == ("mine", "my_engine 1", "saved_model")
        servable = servable_of("two")
        arrays = servable.signature.random_inputs(3)
        with build(servable, Plan(engine="mine")) as runner:
            assert check_runner(runner, arrays, servable.reference(arrays)).passed
        question = Question(engines=("graph", "mine"), threads=(1,), memory_limit=2**30)
        candidates = Candidates(Space(question, ()), lambda plan: math.inf)
        assert Plan(engine="mine", threads=1) in candidates.next()
    finally:
        known_engines.cache_clear()
        sys.modules.pop("my_engine", None)


def test_each_fact_of_a_family_and_of_a_place_is_told_once():
    """Engines with the same kernels have each a place of its own, if they are tried; so have probes and baselines."""
    tried = [engine for engine in ENGINES if not engine.spends_time_in_python and engine.kernels]
    assert len({(engine.family, engine.place_in_family) for engine in tried}) == len(tried)
    probes = [engine.probe_place for engine in ENGINES if engine.probe_place is not None]
    assert sorted(probes) == list(range(len(probes)))
    told = sorted(engine.baseline_place for engine in ENGINES if engine.baseline_place != LAST)
    assert told == list(range(len(told)))
    assert {engine.exported_as for engine in ENGINES} <= {engine.name for engine in ENGINES if engine.format}


def test_a_result_names_the_version_of_each_program_that_runs_a_net():
    """`Environment` cannot ask the catalog, which is in a later room."""
    runs = {names[0] for engine in ENGINES for names in engine.programs.values()} - {"tf2onnx"}
    assert runs <= set(PACKAGES)


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (ImportError("no\nluck"), r"^expected an engine in strange:engine: ImportError: no luck$"),
        ("litert", r"^expected an Engine with a module in strange:engine\. Received: 'litert'$"),
        (
            Engine("new", "about", ("float32",)),
            r"^expected an Engine with a module in strange:engine\. Received: Engine",
        ),
        (
            Engine("onnx", "about", ("float32",), module="m"),
            r"^expected a new name .* strange:engine\. Received: onnx$",
        ),
    ],
    ids=["error", "string", "no module", "name"],
)
def test_a_package_without_a_right_engine_is_named(loaded, message, monkeypatch):
    class Entry:
        value = "strange:engine"

        def load(self):
            if isinstance(loaded, Exception):
                raise loaded
            return loaded

    monkeypatch.setattr("tfperf.engines.catalog.entry_points", lambda group: [Entry()])
    known_engines.cache_clear()
    try:
        with pytest.raises(EngineError, match=message):
            known_engines()
    finally:
        known_engines.cache_clear()


def test_an_engine_knows_the_release_of_the_package_that_brings_it(monkeypatch):
    brought = Engine("new", "about", ("float32",), module="m")

    class Loose(importlib.metadata.EntryPoint):
        """The entry point of a file on the path that belongs to no installed package."""

        def load(self):
            return brought

    monkeypatch.setattr(
        "tfperf.engines.catalog.entry_points", lambda group: [Loose("new", "strange:engine", "tfperf.engines")]
    )
    known_engines.cache_clear()
    try:
        assert known_engines()[-1].release == "strange:engine"
    finally:
        known_engines.cache_clear()
    assert {engine.release for engine in ENGINES} == {""}


def test_names_of_the_room():
    assert set(engines.__all__) == {name for name in engines.__all__ if hasattr(engines, name)}
    tree = ast.parse(inspect.getsource(engines))
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(engines.__all__) == (imported - {"Any", "TYPE_CHECKING"}) | set(engines._HOMES)


def test_importing_the_room_imports_no_engine():
    program = "import sys, tfperf.engines; print({'tensorflow','keras','onnxruntime','openvino'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", ["litert", "onnx", "openvino"])
def test_a_missing_engine_says_what_to_install_and_others_still_work(name, without, servable_of, cache, monkeypatch):
    engine = find_engine(name)
    assert missing(engine) is None
    without(*engine.packages)
    words = f"{name} is missing ({', '.join(engine.packages)}); pip install 'tfperf[{name}]'"
    assert missing(engine) == words
    with pytest.raises(EngineError) as told:
        build(servable_of("two"), Plan(engine=name), cache=cache)
    assert str(told.value) == words
    for other in ("frozen", "graph"):
        assert missing(find_engine(other)) is None
        servable = servable_of("two")
        arrays = servable.signature.random_inputs(2)
        with build(servable, Plan(engine=other), cache=cache) as runner:
            assert check_runner(runner, arrays, servable.reference(arrays)).passed


def test_only_what_is_missing_is_named(without):
    without("tf2onnx")
    assert missing(find_engine("onnx")) == "onnx is missing (tf2onnx); pip install 'tfperf[onnx]'"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(engine="torch"), r"^expected an engine \(predict, .*\)\. Received: torch$"),
        (Plan(engine="predict", precision="int8"), r"^expected a precision of predict \(float32\)\. Received: int8$"),
        (Plan(engine="xla_aot"), r"^xla_aot is built for one batch size"),
    ],
)
def test_a_plan_that_no_engine_can_make_real_is_refused(plan, message, servable_of, tmp_path):
    with pytest.raises(EngineError, match=message):
        build(servable_of("two"), plan, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["eager", "saved_model", "litert"])
def test_only_nets_from_numbers_to_numbers_are_run(engine, tmp_path):
    words = keras.Sequential(
        [keras.Input((1,), dtype="string", name="words"), keras.layers.StringLookup(vocabulary=["a"])]
    )
    with pytest.raises(
        EngineError, match=r"^expected a net from numbers to numbers\. Received: words \(any, 1\) string"
    ):
        build(words, Plan(engine=engine), cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_net_of_a_subclass_comes_with_an_example(tmp_path):
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs):
            return self.dense(keras.ops.concatenate([inputs["b"], inputs["a"]], axis=1))

    net = Pair()
    example = {"a": np.ones((1, 2), "float32"), "b": np.ones((1, 1), "float32")}
    with build(net, Plan(engine="frozen"), example=example, cache=tmp_path) as runner:
        assert [form.name for form in runner.signature.inputs] == ["a", "b"]
        a, b = np.full((4, 2), 2, "float32"), np.full((4, 1), 3, "float32")
        np.testing.assert_allclose(runner(a, b)[0], net({"a": a, "b": b}), rtol=1e-5)


def test_a_saved_model_has_no_net_to_call(servable_of, tmp_path):
    servable_of("two").save(tmp_path / "saved")
    saved = Servable.from_saved_model(tmp_path / "saved")
    for engine in ("eager", "predict"):
        with pytest.raises(EngineError, match=rf"^{engine} calls a Keras net, '.*' is a SavedModel; use saved_model$"):
            build(saved, Plan(engine=engine))
    with pytest.raises(TfperfError, match="expected a Keras net to compute in bfloat16"):
        build(saved, Plan(engine="graph", precision="bfloat16"))
    arrays = saved.signature.random_inputs(3)
    for engine in ("graph", "frozen", "litert"):
        with build(saved, Plan(engine=engine), cache=tmp_path / "cache") as runner:
            assert check_runner(runner, arrays, saved.reference(arrays)).passed


def test_conversions_are_kept_in_the_cache_unless_told_otherwise(servable_of, tmp_path, monkeypatch):
    monkeypatch.setenv("TFPERF_CACHE", str(tmp_path))
    assert conversions_folder() == tmp_path / "engines"
    build(servable_of("two"), Plan(engine="frozen")).close()
    (folder,) = (tmp_path / "engines").iterdir()
    assert folder.name.startswith("frozen-")
    assert stat.S_IMODE((tmp_path / "engines").stat().st_mode) == 0o700
    monkeypatch.setenv("TFPERF_CACHE_GIB", "0")
    assert conversions_folder().exists()
    os.utime(folder, (0, 0))
    assert list(conversions_folder().iterdir()) == []


def test_a_tensorflow_that_has_started_keeps_its_threads(tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", THREADS, str(tmp_path)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused = "expected TensorFlow with 3 threads, in this process it has started with 2; use a fresh process"
    assert done.stdout.splitlines() == ["TensorFlow's pools: intra 2, inter 1", refused] * 2


def test_threads_that_are_not_asked_for_are_told(servable_of):
    with build(servable_of("two"), Plan(engine="graph")) as runner:
        assert runner.proof["threads"].startswith("TensorFlow's own choice (intra ")
