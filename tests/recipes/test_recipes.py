"""Every recipe runs, says what it found, and is listed."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfperf.cookbook import list_recipes, read_header
from tfperf.measure.results import read_result

ROOT = Path(__file__).resolve().parents[2]
RECIPES = list_recipes()
DEADLINE = 280
"""Seconds after which a recipe with --quick is killed; it means a hang, not a speed."""


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """A function that runs a recipe with --quick as its reader would, once for all tests; its process and folder."""
    done = {}

    def quick_run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            command = [sys.executable, str(RECIPES[name]), "--quick"]
            environment = os.environ | {"COLUMNS": "200"}
            process = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE
            )
            done[name] = process, folder
        return done[name]

    return quick_run


def test_the_recipes_are_those_of_the_top_level():
    assert {path.stem for path in (ROOT / "recipes").iterdir() if path.suffix == ".py"} == set(RECIPES)
    assert not [
        path for path in (ROOT / "recipes").iterdir() if path.suffix not in (".py", "") or path.stem.startswith("_")
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_the_readme_lists_it(name):
    assert f"`{name}`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_its_header_is_whole_and_names_its_commands(name):
    header = read_header(RECIPES[name])
    assert header.title.endswith("?")
    assert f"python recipes/{name}.py" in header.command
    assert f"tfperf run {name}" in header.command
    assert "--quick" in header.time


@pytest.mark.parametrize("name", RECIPES)
def test_it_imports_no_other_recipe_and_parses_no_arguments(name):
    for node in ast.walk(ast.parse(RECIPES[name].read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert not {module.split(".")[0] for module in modules} & {"argparse", "typer", "recipes", *RECIPES}


@pytest.mark.timeout(DEADLINE + 20)
@pytest.mark.parametrize("name", RECIPES)
def test_it_runs_and_writes_a_result_and_a_plot(quick_run, name):
    process, folder = quick_run(name)
    assert process.returncode == 0, process.stderr[-2000:]
    result = read_result(folder / "results" / f"{name}.json")
    assert result.name == name
    assert result.meaning, "a recipe says in words what its figures mean"
    assert result.comparisons or result.measurements
    assert result.agreements, "no speed without a check of the answers"
    assert all(agreement.passed for agreement in result.agreements)
    assert (folder / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for sentence in result.meaning:
        assert sentence[:40] in process.stdout


def test_hybridize_counts_traces_and_proves_xla(quick_run):
    _, folder = quick_run("hybridize")
    result = read_result(folder / "results" / "hybridize.json")
    names = [measurement.name for measurement in result.comparisons[0].measurements]
    assert names == ["predict", "eager", "graph", "XLA", "concrete function"]
    assert result.facts["XLA compiled the graph"] is True
    assert result.facts["traces: 4 batch sizes"] == 4
    assert result.facts["traces: 4 batch sizes, batch left open in the signature"] == 1
    assert result.facts["traces: 4 Python numbers"] == 4
    assert result.facts["traces: 4 numbers as tensors"] == 1


def test_save_model_is_read_without_keras_to_the_last_bit(quick_run):
    _, folder = quick_run("save_model")
    result = read_result(folder / "results" / "save_model.json")
    assert result.facts["outputs without Keras equal to the last bit"] is True
    assert (folder / "saved_models" / "mlp" / "1" / "saved_model.pb").is_file()
    assert not [path for path in (folder / "saved_models" / "mlp").iterdir() if path.name != "1"]


@pytest.mark.parametrize("arguments", [["--batch", "3"], ["--batch", "100000"], ["--data", "cifar"]])
def test_mnist_mixed_mirrored_refuses_what_it_cannot_train_on(tmp_path, arguments):
    command = [sys.executable, str(RECIPES["mnist_mixed_mirrored"]), *arguments]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE)
    assert process.returncode == 2
    assert "Traceback" not in process.stderr
    assert arguments[0] in process.stderr.splitlines()[-1]
    assert not list(tmp_path.rglob("*.json"))


def test_mnist_mixed_mirrored_names_its_data_and_learns(quick_run):
    _, folder = quick_run("mnist_mixed_mirrored")
    result = read_result(folder / "results" / "mnist_mixed_mirrored.json")
    assert result.dataset.startswith("fashion_mnist: first ")
    accuracies = [value for name, value in result.facts.items() if name.startswith("test accuracy after epoch 1")]
    assert len(accuracies) == 6
    assert min(accuracies) > 0.5  # ten classes, so chance is 0.1
    assert len(result.comparisons[0].measurements) == 6


def test_gradient_accumulation_saves_memory_and_tells_of_batch_normalization(quick_run):
    _, folder = quick_run("gradient_accumulation")
    result = read_result(folder / "results" / "gradient_accumulation.json")
    assert [agreement.tolerance for agreement in result.agreements] == [1e-6] * 5 + [1e-4] * 5
    more = [value for name, value in result.facts.items() if name.startswith("bytes of peak memory above")]
    assert more == sorted(more)
    assert more[-1] > 50 * 2**20  # the activations of 1,024 images
    assert result.facts["largest difference with batch normalization, as a share of the largest gradient"] > 0.01


def test_operator_fusion_moves_an_eighth(quick_run):
    _, folder = quick_run("operator_fusion")
    facts = read_result(folder / "results" / "operator_fusion.json").facts
    assert facts["kernels: eager, 8 operations"] == facts["kernels: graph, 8 operations"] == 8
    assert facts["kernels: XLA, 8 operations"] == 1
    assert facts["bytes moved: eager, 8 operations"] == pytest.approx(2 * 8 * 64 * 10**6, rel=0.01)
    assert facts["bytes moved: XLA, 8 operations"] == pytest.approx(2 * 64 * 10**6, rel=0.01)


def test_async_dispatch_fits_its_model_and_fills_memory(quick_run):
    _, folder = quick_run("async_dispatch")
    result = read_result(folder / "results" / "async_dispatch.json")
    (agreement,) = result.agreements
    assert agreement.relative_error == 0.0
    times = [value for name, value in result.facts.items() if name.endswith(": seconds")]
    assert len(times) == 3
    assert min(times[:2]) > 0
    waited, queued = (value for name, value in result.facts.items() if name.startswith("bytes of memory that"))
    assert queued > waited + 20 * 2**20
    assert {name for name in result.facts if name.startswith("measured against predicted")} == {
        "measured against predicted: waiting each time",
        "measured against predicted: waiting once",
    }
