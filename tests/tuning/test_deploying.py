"""A plan as files, and what becomes of damaged ones."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tfperf.engines import Plan
from tfperf.engines.trial import Status, Trial
from tfperf.errors import EngineError
from tfperf.tuning.deploying import load_deployed, write_deployment

FRESH = """
import sys
import numpy as np
from tfperf.tuning.deploying import load_deployed
runner = load_deployed(sys.argv[1])
with np.load(sys.argv[2]) as arrays:
    (answer,) = runner(arrays["x"])
    assert np.allclose(answer, arrays["y"], rtol=1e-4, atol=1e-5)
loaded = [name for name in ("keras", "tensorflow", "torch", "jax") if name in sys.modules]
print(runner.plan, loaded)
"""


@pytest.fixture
def deployed(dense, planted, tmp_path):
    """A function that writes what runs the dense net with an engine."""
    servable, _, cache = dense

    def deployed(engine="honest", **parts):
        trial = Trial(plan=Plan(**{"engine": engine, "threads": 1} | parts), batch=2, status=Status.RAN)
        return write_deployment(tmp_path / "deployed", servable, trial, None, cache)

    return deployed


def test_a_fresh_process_without_keras_answers_as_the_net(deployed, dense, tmp_path):
    folder = deployed()
    assert sorted(path.name for path in folder.iterdir()) == ["net", "plan.json", "reference.npz"]
    about = json.loads((folder / "plan.json").read_text())
    assert about["plan"]["engine"] == "honest"
    assert about["size"] == sum(file.stat().st_size for file in (folder / "net").iterdir())
    (rows,) = dense[0].signature.random_inputs(5, seed=9)
    np.savez(tmp_path / "rows.npz", x=rows, y=dense[0].reference([rows])[0])
    done = subprocess.run(
        [sys.executable, "-c", FRESH, folder, tmp_path / "rows.npz"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "honest, 1 thread []\n"), done.stderr


def test_a_plan_in_python_is_written_as_its_graph(deployed, dense):
    folder = deployed("graph", threads=None, transformations=("constant_weights",))
    runner = load_deployed(folder)
    assert runner.plan == Plan(engine="saved_model", transformations=("constant_weights",))
    arrays = dense[0].signature.random_inputs(3)
    np.testing.assert_allclose(runner(*arrays)[0], dense[0].reference(arrays)[0], rtol=1e-4, atol=1e-5)


def changed(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def shifted(file):
    with np.load(file) as arrays:
        kept = dict(arrays)
    np.savez(file, **{name: array + 0.1 * name.startswith("outputs") for name, array in kept.items()})


NO_FOLDER = "expected a folder that tfperf tune --export wrote"
NOT_ALL = "expected all that tfperf tune --export wrote"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "plan.json").unlink(), NO_FOLDER),
        (lambda folder: (folder / "plan.json").write_text('{"plan": {'), NO_FOLDER),
        (lambda folder: changed(folder / "plan.json", tolerance=-1), NO_FOLDER),
        (lambda folder: changed(folder / "plan.json", tolerance="all"), NO_FOLDER),
        (lambda folder: changed(folder / "plan.json", more=1), NO_FOLDER),
        (lambda folder: changed(folder / "plan.json", plan={"engine": "torch"}), "Received: torch"),
        (lambda folder: (folder / "reference.npz").unlink(), NOT_ALL),
        (lambda folder: (folder / "reference.npz").write_bytes(b"PK"), NOT_ALL),
        (lambda folder: np.savez(folder / "reference.npz", x=np.ones(2)), NOT_ALL),
        (lambda folder: shifted(folder / "reference.npz"), "wrong answers: honest, 1 thread DISAGREES"),
        (lambda folder: (folder / "net" / "weights.npz").unlink(), NOT_ALL),
        (lambda folder: (folder / "net" / "weights.npz").write_bytes(b"PK"), NOT_ALL),
        (lambda folder: [file.unlink() for file in (folder / "net").iterdir()], ""),
    ],
    ids=range(13),
)
def test_what_is_damaged_is_one_line(deployed, spoil, words):
    folder = deployed()
    assert load_deployed(folder).plan.engine == "honest"
    spoil(folder)
    with pytest.raises(EngineError) as refused:
        load_deployed(folder)
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_folder_of_something_else_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(EngineError, match=f"^{NO_FOLDER}"):
            load_deployed(folder)


def test_what_stands_there_stays(deployed, tmp_path):
    (tmp_path / "deployed").mkdir()
    (tmp_path / "deployed" / "mine").write_text("mine")
    with pytest.raises(OSError, match=r"not empty|exists"):
        deployed()
    assert [path.name for path in (tmp_path / "deployed").iterdir()] == ["mine"]
    assert not list(tmp_path.glob("*.part"))
