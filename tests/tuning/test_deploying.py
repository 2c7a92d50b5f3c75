"""A plan as files, and what becomes of damaged ones."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfperf.engines import Plan
from tfperf.errors import EngineError
from tfperf.exports.manifest import digests_of, encoded, fingerprint, paths_of
from tfperf.trials.trial import Status, Trial
from tfperf.tuning import deploying
from tfperf.tuning.deploying import MANIFEST, DeploymentManifest, load_deployed, write_deployment

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
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, "net", "plan.json", "reference.npz"]
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
    """A deployment with a fitting manifest of its own, as by a hand that wrote both."""
    folder = deployed()
    assert load_deployed(folder).plan.engine == "honest"
    spoil(folder)
    files = digests_of(folder, MANIFEST)
    (folder / MANIFEST).write_bytes(encoded(DeploymentManifest(files=files, fingerprint=fingerprint(files))))
    with pytest.raises(EngineError) as refused:
        load_deployed(folder)
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.fixture
def never_loaded(monkeypatch):
    """An engine that must not be asked."""
    monkeypatch.setattr(deploying, "load", lambda *_: pytest.fail("loaded"))


def refusal(folder):
    with pytest.raises(EngineError) as refused:
        load_deployed(folder)
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


def altered(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def linked_out(file):
    """The same content, where somebody else can change it later."""
    outside = file.parents[1] / "outside" if file.parent.name != "net" else file.parents[2] / "outside"
    shutil.move(file, outside)
    file.symlink_to(outside)


def test_every_file_is_in_the_manifest(deployed):
    folder = deployed()
    manifest = DeploymentManifest.model_validate_json((folder / MANIFEST).read_bytes())
    assert [file.path for file in manifest.files] == paths_of(folder, MANIFEST)
    assert {"plan.json", "reference.npz"} < {file.path for file in manifest.files}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (altered, "is altered"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\0"), "bytes, not"),
        (Path.unlink, "is missing"),
        (linked_out, "is a link out of the folder"),
        (lambda file: file.with_name("more").write_text("?"), "more was not exported"),
        (lambda file: file.with_name("more").symlink_to("/usr"), "more was not exported"),
        (lambda file: (file.unlink(), file.mkdir()), "is missing"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "is no file"),
        (lambda file: os.chown(file, 54321, -1), "to belong to this user or to root: user 54321"),
        (lambda file: os.chown(file.parent, 54321, -1), "to belong to this user or to root: user 54321"),
    ],
    ids=range(10),
)
def test_what_is_not_as_it_was_written_is_refused_before_it_is_loaded(spoil, words, deployed, never_loaded):
    if "user 54321" in words and os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    folder = deployed()
    for path in (folder / "plan.json", folder / "reference.npz", *(folder / "net").iterdir()):
        shutil.copytree(folder, copy := folder.with_name("copy"))
        spoil(copy / path.relative_to(folder))
        told = refusal(copy)
        assert words in told
        assert str(copy) in told
        shutil.rmtree(copy)
        (folder.parent / "outside").unlink(missing_ok=True)


def test_another_tolerance_in_the_plan_is_noticed(deployed, never_loaded):
    folder = deployed()
    changed(folder / "plan.json", tolerance=1e9)
    assert "plan.json has" in refusal(folder)


def test_an_altered_manifest_is_noticed(deployed, never_loaded):
    folder = deployed()
    altered(folder / MANIFEST)
    assert "altered" in refusal(folder)


def test_a_folder_without_a_manifest_is_refused(deployed, never_loaded):
    folder = deployed()
    (folder / MANIFEST).unlink()
    assert refusal(folder).endswith("No such file or directory")


def test_a_link_to_a_deployment_and_links_within_it_are_as_good(deployed, tmp_path):
    folder = deployed()
    with load_deployed(folder) as runner:
        assert runner.plan.engine == "honest"
    (tmp_path / "current").symlink_to(folder)
    load_deployed(tmp_path / "current").close()
    files = digests_of(folder, MANIFEST)
    (folder / "again.npz").symlink_to("reference.npz")
    assert "again.npz was not exported" in refusal(folder)
    listed = (*files, files[-1].model_copy(update={"path": "again.npz"}))
    manifest = DeploymentManifest(files=listed, fingerprint=fingerprint(listed))
    (folder / MANIFEST).write_bytes(encoded(manifest))
    load_deployed(folder).close()


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


def test_a_disk_that_is_full_at_any_moment_leaves_no_deployment(dense, planted, small_disk):
    servable, _, cache = dense
    trial = Trial(plan=Plan(engine="honest", threads=1), batch=2, status=Status.RAN)
    home, failed = small_disk.root / "home", 0
    home.mkdir()
    for full in small_disk.fuller_to_emptier(step=3):
        try:
            folder = write_deployment(home / "deployed", servable, trial, None, cache)
        except OSError as error:
            failed, told = failed + 1, error
            assert str(told).startswith("[Errno 28] No space left on device: '"), full
            assert list(home.iterdir()) == [], full
        else:
            load_deployed(folder).close()
            shutil.rmtree(folder)
            assert list(home.iterdir()) == [], full
    assert failed > 4
