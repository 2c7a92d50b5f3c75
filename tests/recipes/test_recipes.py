"""Every recipe runs, says what it found, and is listed."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.forking import ForkServer
from tfperf.cookbook import list_recipes, read_header
from tfperf.measure.results import read_result

ROOT = Path(__file__).resolve().parents[2]
RECIPES = list_recipes()
RUN_ELSEWHERE = ("mnist_hvd_elastic",)
"""Recipes whose own test file looks at the same run in more ways."""

STARTED_ANEW = ("hybridize", "mnist_spark")
"""Recipes that run in an interpreter of their own, as their reader starts them; the others are forked."""

FLAGS = ("--quick", "--time-limit", "1")
"""The second: what is looked at here is what a recipe measures and says, and not how close its figures are."""

SMALLER = {"large_batch": ("--target", "0.6")}
"""More flags of recipes whose work is long in itself."""

ENVIRONMENT = os.environ | {"COLUMNS": "200"}

DEADLINE = 280
"""Seconds after which a recipe with --quick is ended; it means a hang, not a speed."""


@pytest.fixture(scope="module")
def run_recipe():
    """A function that runs a recipe in a folder, with flags."""
    with ForkServer(env=ENVIRONMENT) as server:

        def run_recipe(name, *flags, folder):
            if name not in STARTED_ANEW:
                return server.run(RECIPES[name], *flags, folder=folder, deadline=DEADLINE)
            command, options = [sys.executable, str(RECIPES[name]), *flags], {"capture_output": True, "text": True}
            return subprocess.run(command, cwd=folder, env=ENVIRONMENT, timeout=DEADLINE, **options)

        yield run_recipe


@pytest.fixture(scope="module")
def quick_run(run_recipe, tmp_path_factory):
    """A function that runs a recipe with --quick, once for all tests; its process and folder."""
    done = {}

    def quick_run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            done[name] = run_recipe(name, *FLAGS, *SMALLER.get(name, ()), folder=folder), folder
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
    assert "--quick" in header.time


@pytest.mark.parametrize("name", RECIPES)
def test_it_imports_no_other_recipe_and_parses_no_arguments(name):
    for node in ast.walk(ast.parse(RECIPES[name].read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert not {module.split(".")[0] for module in modules} & {"argparse", "typer", "recipes", *RECIPES}


@pytest.mark.timeout(DEADLINE + 20)
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in RUN_ELSEWHERE])
def test_it_runs_and_writes_a_result_and_a_plot(quick_run, check_result, name):
    process, folder = quick_run(name)
    assert process.returncode == 0, process.stderr[-2000:]
    check_result(name, folder, process.stdout)


@pytest.mark.parametrize("name", RUN_ELSEWHERE)
def test_a_recipe_that_is_run_elsewhere_is_checked_there(name):
    assert f'check_result("{name}", ' in (ROOT / "tests" / "recipes" / f"test_{name}.py").read_text()


def test_hybridize_counts_traces_and_proves_xla(quick_run):
    _, folder = quick_run("hybridize")
    result = read_result(folder / "results" / "hybridize.json")
    names = [measurement.name for measurement in result.comparisons[0].measurements]
    assert names == ["eager", "graph", "XLA", "concrete function", "predict"]
    assert result.facts["XLA compiled the graph"] is True
    assert result.facts["operations of fancy_func, as TensorFlow runs it"] == "Const _Retval"
    assert result.facts["XLA folded fancy_func into one constant"] is True
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
def test_mnist_mixed_mirrored_refuses_what_it_cannot_train_on(run_recipe, tmp_path, arguments):
    process = run_recipe("mnist_mixed_mirrored", *arguments, folder=tmp_path)
    assert process.returncode == 2
    assert "Traceback" not in process.stderr
    assert arguments[0] in process.stderr.splitlines()[-1]
    assert not list(tmp_path.rglob("*.json"))


def test_mnist_mixed_mirrored_names_its_data_and_learns(quick_run):
    _, folder = quick_run("mnist_mixed_mirrored")
    result = read_result(folder / "results" / "mnist_mixed_mirrored.json")
    assert result.dataset.startswith("fashion_mnist: first ")
    accuracies = [value for name, value in result.facts.items() if name.startswith("test accuracy after epoch 1")]
    assert len(accuracies) in (4, 6)  # float16 is left out where a step takes over 20 times as long
    assert min(accuracies) > 0.5  # ten classes, so chance is 0.1
    assert len(result.comparisons[0].measurements) == len(accuracies)
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.01)  # float32, mirrored: it trains as one device does
    assert sum("MirroredStrategy() takes all visible GPUs" in sentence for sentence in result.meaning) == 1


def test_gradient_accumulation_saves_memory_and_is_exact(quick_run):
    _, folder = quick_run("gradient_accumulation")
    result = read_result(folder / "results" / "gradient_accumulation.json")
    assert [agreement.tolerance for agreement in result.agreements] == [1e-3] + [1e-6] * 5
    more = [value for name, value in result.facts.items() if name.startswith("bytes of peak memory above")]
    assert more == sorted(more)
    assert more[-1] > 50 * 2**20  # the activations of 1,024 images
    assert result.facts["times the gradient when 4 parts are not divided"] == pytest.approx(4)


def test_operator_fusion_moves_an_eighth_and_looks_at_a_net(quick_run):
    _, folder = quick_run("operator_fusion")
    facts = read_result(folder / "results" / "operator_fusion.json").facts
    assert facts["kernels: eager, 8 operations"] == facts["kernels: graph, 8 operations"] == 8
    assert facts["kernels: XLA, 8 operations"] == 1
    assert facts["bytes moved: eager, 8 operations"] == pytest.approx(2 * 8 * 64 * 10**6, rel=0.01)
    assert facts["bytes moved: XLA, 8 operations"] == pytest.approx(2 * 64 * 10**6, rel=0.01)
    assert 0 < facts["fused kernels of TensorFlow"] < facts["kernels TensorFlow runs"]
    assert facts["kernels of XLA"] < facts["kernels TensorFlow runs"]


def test_train_fast_keeps_what_is_faster_and_shares_the_gain_out(quick_run):
    _, folder = quick_run("train_fast")
    result = read_result(folder / "results" / "train_fast.json")
    half = result.environment.accelerators or result.environment.instructions_for("bfloat16")
    assert len(result.agreements) == len(result.comparisons) == 5 + bool(half)
    shares = [value for name, value in result.facts.items() if name.startswith("share of the gain: ")]
    assert not shares or sum(shares) == pytest.approx(1)
    for comparison in result.comparisons:
        (ratio,) = comparison.ratios
        assert (f"share of the gain: {ratio.candidate}" in result.facts) == (ratio.verdict == "faster")
        assert any(ratio.candidate in sentence for sentence in result.meaning)


def test_optimizer_step_counts_the_operations_of_an_update(quick_run):
    _, folder = quick_run("optimizer_step")
    result = read_result(folder / "results" / "optimizer_step.json")
    assert [agreement.tolerance for agreement in result.agreements] == [1e-5]
    for name in ("small, of many variables", "large, of few variables"):
        facts = [
            result.facts[f"operations a variable, Adam {way}: {name}"]
            for way in ("as Keras has it", "in one operation")
        ]
        assert facts[0] > 15 > facts[1]
    shares = [
        result.facts[f"share of a step, {way}: small, of many variables"]
        for way in ("Adam as Keras has it", "outside the graph")
    ]
    assert 0 < shares[0] < shares[1] < 1


def test_steps_per_execution_fits_a_line_and_counts_when_training_stops(quick_run):
    _, folder = quick_run("steps_per_execution")
    result = read_result(folder / "results" / "steps_per_execution.json")
    assert len(result.agreements) == 5  # of 4, 16 and 64 steps a call and of both loops, with one step a call
    stopped = "steps until training stops that should stop after one: fit, "
    assert [value for name, value in result.facts.items() if name.startswith(stopped)] == [1, 4, 16, 64]
    assert result.facts["seconds of a call"] >= 0
    assert any(sentence.startswith("With k = ") for sentence in result.meaning)


def test_async_dispatch_fits_its_model_and_fills_memory(quick_run):
    _, folder = quick_run("async_dispatch")
    result = read_result(folder / "results" / "async_dispatch.json")
    (agreement,) = result.agreements
    assert agreement.relative_error == 0.0
    times = [value for name, value in result.facts.items() if name.endswith(": seconds")]
    assert len(times) == 3
    assert min(times[:2]) > 0
    waited, queued = (value for name, value in result.facts.items() if name.startswith("bytes of memory that"))
    assert queued > waited + 4 * 2**20  # several rounds' matrices of 1 MiB; how many, a busy machine decides
    assert {name for name in result.facts if name.startswith("measured against predicted")} == {
        "measured against predicted: waiting each time",
        "measured against predicted: waiting once",
    }


def test_hardware_numbers_measures_the_ladder(quick_run):
    _, folder = quick_run("hardware_numbers")
    result = read_result(folder / "results" / "hardware_numbers.json")
    assert {agreement.relative_error for agreement in result.agreements} == {0.0}
    orders, chains, branch, disk = result.comparisons
    assert [one.name for one in orders.measurements] == ["in order", "backwards", "a page apart", "random"]
    assert [one.name for one in chains.measurements] == [f"chains: {number}" for number in (1, 2, 4, 8, 16)]
    assert [one.name for one in branch.measurements] == ["shuffled", "sorted"]
    assert [one.name for one in disk.measurements] == ["one at a time", "queued", "one transfer"]
    most = 2**18 / chains["chains: 16"].median / 1e6
    assert f"16 chains of a core {most:.0f} million" in " ".join(result.meaning)
    assert any(name.startswith("memory, first access") for name in result.facts)
    assert any(name.startswith("disk, one transfer") for name in result.facts)


def test_batch_size_intensity_counts_what_the_formula_says(quick_run):
    _, folder = quick_run("batch_size_intensity")
    result = read_result(folder / "results" / "batch_size_intensity.json")
    assert [agreement.tolerance for agreement in result.agreements] == [0.05] * 6 + [1e-5]
    facts = result.facts
    assert facts["FLOP/byte: dense, batch 1"] == pytest.approx(2 * 4096**2 / (4 * (4096**2 + 2 * 4096)))
    assert facts["FLOP/byte: dense, batch 64"] == pytest.approx(2 * 64 * 4096 / (4 * (4096 + 2 * 64)))
    assert facts["FLOP/byte: mlp, batch 64"] > 10 * facts["FLOP/byte: mlp, batch 1"]


def test_bound_by_what_judges_each_case_and_puts_the_verdict_to_the_test(quick_run):
    _, folder = quick_run("bound_by_what")
    result = read_result(folder / "results" / "bound_by_what.json")
    assert [agreement.candidate for agreement in result.agreements] == [
        *(f"{count} multiply-adds, chains: {chains}" for count, chains in ((2, 2), (8, 8), (32, 8), (128, 8), (128, 1)))
    ]
    facts = result.facts
    assert facts["kernels: 128 multiply-adds"] == 1
    assert facts["FLOPs with each number where the roofs meet"] > 0
    seconds = {measurement.name: measurement.median for measurement in result.comparisons[0].measurements}
    flat, long = seconds["2 multiply-adds"], seconds["128 multiply-adds"]
    assert facts["FLOPs with each number where time bends"] == pytest.approx(264 * flat / long)
    bounds = {name.removeprefix("bound: "): bound for name, bound in facts.items() if name.startswith("bound: ")}
    assert set(bounds.values()) <= {"compute", "bandwidth", "overhead"}
    assert len(bounds) == len(result.comparisons) - 1 == 4
    for (name, bound), comparison in zip(bounds.items(), result.comparisons[1:], strict=True):
        assert (bound == "overhead") == (comparison["tiny inputs"].median > comparison[name].median / 2)
    changes = {
        "half the arithmetic": ("compute", 0.5),
        "twice the bytes": ("bandwidth", 2),
        "twice the calls": ("overhead", 2),
    }
    for name, bound in bounds.items():
        for change, (of, effect) in changes.items():
            ratio, predicted = facts[f"times as long with {change}: {name}"], effect if bound == of else 1
            verdict = "holds" if 0.7 < ratio / predicted < 1.4 else "fails"
            sentence = f"{name}, {change}: {ratio:.2f} times as long, {predicted:g} predicted; the verdict {verdict}."
            assert sentence in result.meaning


def test_quantize_int8_keeps_the_accuracy_in_a_quarter_of_the_size(quick_run):
    pytest.importorskip("ai_edge_litert")
    _, folder = quick_run("quantize_int8")
    facts = read_result(folder / "results" / "quantize_int8.json").facts
    assert facts["accuracy: Keras, float32"] > 0.7
    for way in ("Keras, int8", "LiteRT, int8", "LiteRT, int8 with fixed scales", "ONNX Runtime, int8"):
        if f"accuracy: {way}" in facts:
            assert abs(facts[f"accuracy: {way}"] - facts["accuracy: Keras, float32"]) <= 0.01
            assert facts[f"bytes on disk: {way}"] < 0.3 * facts["bytes on disk: Keras, float32"]
    assert facts["accuracy: weights in 2 bits, by hand"] < facts["accuracy: weights in 8 bits, by hand"]


def test_mixed_precision_counts_what_half_loses(quick_run):
    _, folder = quick_run("mixed_precision")
    facts = read_result(folder / "results" / "mixed_precision.json").facts
    saved = "share of gradients that only a scaled loss saves: mixed_"
    assert facts[f"{saved}bfloat16"] == 0.0
    assert facts[f"{saved}float16"] > 0.0
    kept = "share of weights that an update leaves as they are: kept in "
    assert facts[f"{kept}float32"] < 0.1 < facts[f"{kept}float16"] < facts[f"{kept}bfloat16"]
    fails = "logits behind from which the gradient fails: "
    assert 8 < facts[f"{fails}softmax in float16"] < 18
    assert facts[f"{fails}logits in float32"] == "never"
    accuracies = [value for name, value in facts.items() if name.startswith("test accuracy: ")]
    assert len(accuracies) in (2, 3)  # float16 is left out where a step takes over 20 times as long
    assert min(accuracies) > 0.5  # ten classes, so chance is 0.1


def test_input_pipeline_measures_each_way_alone_and_with_the_step(quick_run):
    _, folder = quick_run("input_pipeline")
    result = read_result(folder / "results" / "input_pipeline.json")
    assert len(result.agreements) == 8
    names = [agreement.candidate for agreement in result.agreements]
    assert {f"max(read, step) by the time of both: {name}" for name in names} <= set(result.facts)
    hidden = [value for name, value in result.facts.items() if name.startswith("share of the shorter that is hidden")]
    assert len(hidden) == 8
    assert all(0 <= share <= 1 for share in hidden)
    for name, comparison in zip(names, result.comparisons, strict=True):
        measured = [measurement.name for measurement in comparison.measurements]
        assert measured == [f"{name}: step", f"{name}: read", f"{name}: both"]


@pytest.mark.parametrize("name", ["mixed_precision", "input_pipeline"])
def test_a_batch_larger_than_the_data_is_refused(run_recipe, tmp_path, name):
    process = run_recipe(name, "--batch", "100000", folder=tmp_path)
    assert process.returncode == 2
    assert "Traceback" not in process.stderr
    assert "--batch" in process.stderr.splitlines()[-1]
    assert not list(tmp_path.rglob("*.json"))


def test_auto_parallel_compares_with_the_sum(quick_run):
    _, folder = quick_run("auto_parallel")
    result = read_result(folder / "results" / "auto_parallel.json")
    assert {agreement.relative_error for agreement in result.agreements} == {0.0}
    names = [[measurement.name for measurement in comparison.measurements] for comparison in result.comparisons]
    assert names == [
        ["one alone", "the other alone", "in turns", "together"],
        ["computing alone", "copying alone", "copies in turns", "copies together"],
    ]
    for title, comparison in zip(("two branches", "copies"), result.comparisons, strict=True):
        one, other, _, together = (measurement.median for measurement in comparison.measurements)
        assert result.facts[f"share of the sum, {title}: together"] == pytest.approx(together / (one + other))
    for what in ("together", "in turns"):
        assert result.facts[f"cores at work, branches {what}"] < 1.01 * os.cpu_count()  # its two clocks are not one


def test_tensor_cores_names_the_units_that_are_here(quick_run):
    _, folder = quick_run("tensor_cores")
    result = read_result(folder / "results" / "tensor_cores.json")
    exact = [agreement for agreement in result.agreements if agreement.candidate.startswith("int8")]
    assert exact
    assert {agreement.relative_error for agreement in exact} == {0.0}
    if not result.environment.accelerators:
        has = "avx512_bf16" in result.environment.cpu_features or "amx_bf16" in result.environment.cpu_features
        assert (result.facts["unit: bfloat16"] != "none") == has
    rates = [value for name, value in result.facts.items() if name.startswith("operations a second: ")]
    assert len(rates) == 5 * 6
    assert min(rates) > 0
    assert len(result.agreements) == 5 * 4  # each way aligned, odd and padded
    costs = [name for name in result.facts if name.startswith("a multiply-add takes longer by: ")]
    assert len(costs) == 5 * 3
    for name in ("bfloat16", "float16", "int8, by XLA"):
        unit = result.facts[f"unit: {name}"]
        (sentence,) = [one for one in result.meaning if one.startswith(f"{name}: ")]
        assert ("no unit here multiplies it" if unit == "none" else f"{unit} would allow ") in sentence


def test_mnist_spark_gives_in_each_way_what_one_process_gives(quick_run):
    _, folder = quick_run("mnist_spark")
    result = read_result(folder / "results" / "mnist_spark.json")
    ways = [name.partition(", ")[2] for name in result.facts if name.startswith("ranks with equal weights")]
    assert ways[:2] == ["one process", "Horovod on Spark"]
    assert ("TensorFlowOnSpark" in ways) != any("TensorFlowOnSpark is left out" in one for one in result.meaning)
    assert [result.facts[f"ranks with equal weights, {way}"] for way in ways] == [1, 2, 2][: len(ways)]
    logits = [agreement.tolerance for agreement in result.agreements if "logits" in agreement.candidate]
    assert logits == [1e-5] * (len(ways) - 1)
    accuracies = [result.facts[f"test accuracy, {way}"] for way in ways]
    assert min(accuracies) > 0.6  # ten classes, so chance is 0.1
    assert max(accuracies) - min(accuracies) <= 0.02
    for way in ways:
        phases = ("up to the first step", "training", "after the last step")
        assert all(result.facts[f"seconds {phase}, {way}"] > 0 for phase in phases)
        assert result.facts[f"images/s, {way}"] > 0


def test_sharing_a_device_tells_busy_from_work(quick_run):
    _, folder = quick_run("sharing_a_device")
    result = read_result(folder / "results" / "sharing_a_device.json")
    assert {agreement.relative_error for agreement in result.agreements} == {0.0}
    programs = ("matrix products", "sums from memory", "single additions")
    rates = [result.facts[f"floating-point operations a second: {program}"] for program in programs]
    for program in programs:
        busy = result.facts[f"busy, %: {program}"]
        assert 0 < busy < 105  # the two clocks are read one after the other
        assert f"{program} keep a core {busy / 100:.0%} busy" in " ".join(result.meaning)
    assert f" one {max(rates) / min(rates):,.0f}th of the most" in " ".join(result.meaning)
    for comparison in result.comparisons:
        alone, *together = comparison.measurements
        program, _, _ = alone.name.partition(", ")
        for two in together:  # a round of each, begun at once
            rounds = 2 * comparison.ratio(alone.name, two.name).estimate
            assert result.facts[f"work done as a multiple of one process: {two.name}"] == pytest.approx(rounds)
            assert two.name.startswith(f"{program}, two")


def test_ring_allreduce_counts_2_n_minus_1_nths(quick_run):
    _, folder = quick_run("ring_allreduce")
    facts = read_result(folder / "results" / "ring_allreduce.json").facts
    for n in (2, 3, 4):
        ring, one = (facts[f"most arrays sent by a rank: slow links, {way}, n={n}"] for way in ("ring", "at one rank"))
        assert ring == pytest.approx(2 * (n - 1) / n, rel=0.01)
        assert one == n - 1


def test_transfers_checks_what_arrives_and_fits_each_kind(quick_run):
    _, folder = quick_run("transfers")
    result = read_result(folder / "results" / "transfers.json")
    kinds = {name.partition(": ")[2] for name in result.facts if name.startswith("seconds to start")}
    assert kinds >= {"memory", "file in the page cache", "file past the cache", "loopback TCP", "pipe to a process"}
    assert {agreement.tolerance for agreement in result.agreements} == {0.0}
    assert all(result.facts[f"bytes/s: {kind}"] > 0 for kind in kinds)


def test_model_parallel_waits_half_the_time_without_micro_batches(quick_run):
    _, folder = quick_run("model_parallel")
    result = read_result(folder / "results" / "model_parallel.json")
    for phase in ("forward", "training"):
        assert result.facts[f"bubble measured, {phase}, 1 micro-batches"] >= 0.5 - 1e-6  # two stages in turns
    assert any("weights after 20 steps" in agreement.candidate for agreement in result.agreements)


def test_channel_parallel_counts_the_bytes_it_predicts(quick_run):
    _, folder = quick_run("channel_parallel")
    facts = read_result(folder / "results" / "channel_parallel.json").facts
    assert facts["bytes exchanged are as predicted, for each layer"] is True
    assert facts["largest share of the weights on a device"] < 0.55
    assert facts["batch up to which channels exchange less: dense and dense_1"] == pytest.approx(256, rel=0.01)


def test_scaling_counts_the_arithmetic_of_a_weight_and_predicts_a_knee(quick_run):
    _, folder = quick_run("scaling")
    result = read_result(folder / "results" / "scaling.json")
    ratios = {"Inception v3": 240, "ResNet-50": 151, "AlexNet": 12, "resnet18": 41, "lenet": 17}
    for name, ratio in ratios.items():
        assert result.facts[f"multiply-adds for each weight: {name}"] == pytest.approx(ratio, abs=0.6)
    overlapped, in_turns = (result.facts[f"knee, workers: ring, {way}"] for way in ("overlapped", "in turns"))
    assert overlapped >= in_turns >= 1
    assert [agreement.candidate for agreement in result.agreements] == ["gradient of 2 workers of batch 64"]
    exchange = result.facts["seconds, 2 workers of batch 64: exchange"]
    assert result.facts["seconds, 2 workers of batch 64: in_turns"] > exchange > 0.004  # 0.5 MB, slowed to 50 MB/s


def test_large_batch_counts_steps_and_gives_the_noise_as_a_range(quick_run):
    _, folder = quick_run("large_batch")
    result = read_result(folder / "results" / "large_batch.json")
    assert result.facts["critical batch, images"] > 0
    assert sum(name.startswith("noise scale after") for name in result.facts) >= 3
    assert any("2505.23971" in sentence for sentence in result.meaning)


def test_mirrored_resnet18_trains_as_one_device_does_where_statistics_are_shared(quick_run):
    _, folder = quick_run("mirrored_resnet18")
    result = read_result(folder / "results" / "mirrored_resnet18.json")
    assert [agreement.tolerance for agreement in result.agreements] == [1e-9]
    assert result.facts["relative difference of the weights with statistics of each replica"] > 1e-3
    assert result.facts["a net built outside the scope"] == "Keras raises AssertionError"
    names = [measurement.name for measurement in result.comparisons[0].measurements]
    assert names == ["no strategy", "mirrored on 1", "mirrored on 2"]
    accuracies = [result.facts[f"test accuracy: {name}"] for name in names]
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.05)  # equal first weights and batches, one replica


def test_data_parallel_from_scratch_is_exact_and_the_sources_allreduce_is_not(quick_run):
    _, folder = quick_run("data_parallel_from_scratch")
    result = read_result(folder / "results" / "data_parallel_from_scratch.json")
    assert [agreement.tolerance for agreement in result.agreements] == [1e-9]
    assert result.facts["test accuracy: 2 devices"] > 0.2  # ten classes, so chance is 0.1
    assert result.facts["distance of the source's replicas as a share of the weights"] > 0.01
    shown = "[3. 3.] and [3. 3.], and passes; the gradients are then [3. 3.] and [2. 2.]"
    assert sum(shown in sentence for sentence in result.meaning) == 1


def test_kvstore_trains_as_one_device_does(quick_run):
    _, folder = quick_run("kvstore")
    result = read_result(folder / "results" / "kvstore.json")
    assert {agreement.tolerance for agreement in result.agreements} == {1e-5, 0.0}
    whole, split = (result.facts[f"bytes on the fullest server, {way} values"] for way in ("whole", "split"))
    assert (whole, split) == (410_520, 258_136)
    assert 0 < result.facts["share of sums whose bits follow the order"] < 1


def test_parameter_server_splits_what_one_server_holds(quick_run):
    _, folder = quick_run("parameter_server")
    facts = read_result(folder / "results" / "parameter_server.json").facts
    ways = ("1 server", "servers, whole tensors", "servers, equal parts")
    one, whole, equal = (facts[f"bytes on the fullest server, {way}"] for way in ways)
    assert one == 516_272 == 2 * equal
    assert equal < whole < one
    assert facts["distance of the asynchronous change from one device's, relative"] > 0
