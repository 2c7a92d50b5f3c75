"""The same net, exported once: which engine should run it?

Command: python recipes/deploy_engines.py, or tfperf run deploy_engines
Needs: TensorFlow and a C++ compiler; LiteRT, ONNX Runtime and OpenVINO where they are installed
    (pip install 'tfperf[engines]'); no GPU, no data.
Time: about 90 s; with --quick about 60 s.
Source: a hybridized net can be saved, and run from other front-end languages and on other devices.
Expect: one table: eager Keras beside the same net as a graph, in C, in LiteRT, ONNX Runtime, OpenVINO, and compiled
    ahead of time by XLA; the same answers from all of them, and differences in speed, size and memory of far more
    than the graph alone brings.
"""

from tfperf import Recipe, get_net
from tfperf.engines import Plan, find_engine
from tfperf.engines.process import Origin
from tfperf.engines.survey import survey
from tfperf.exports import Servable
from tfperf.measure.words import format_bytes, plain_ratio
from tfperf.report.engines import cost_table, survey_plots

ENGINES = ("eager", "graph", "saved_model", "frozen", "c_api", "litert", "onnx", "openvino", "xla_aot")


def main(recipe: Recipe) -> None:
    """Convert a net for each engine, check the answers, and measure all in turns, each in a process of its own."""
    batch, seed = recipe.flags.batch, recipe.flags.seed
    net = Servable.from_net(get_net(seed=seed))
    inputs = net.signature.random_inputs(batch, seed)  # one array, (batch, 512)

    plans = []
    for name in ENGINES:
        fixed = find_engine(name).fixed_batch  # XLA ahead of time compiles for one shape
        plans.append(Plan(engine=name, threads=1, batch=batch if fixed else None))

    (found,) = survey(
        net,
        Origin("mlp", seed=seed),
        {batch: plans},
        {batch: inputs},
        time_limit=recipe.flags.time_limit,
        on_step=lambda step: recipe.console.print(step, markup=False, style="dim"),
    )
    for row in found.trials:
        if row.reason:
            recipe.means(f"{row.plan}: {row.status}: {row.reason}")
    for row in found.ran:
        recipe.add(row.agreement)
        recipe.fact(f"{row.plan.engine}: bytes on disk", row.size or 0)
        for what, words in row.proof.items():
            recipe.fact(f"{row.plan.engine}: {what}", words)
    recipe.add(found.comparison)
    recipe.console.print(cost_table(found))

    seconds = {row.plan.engine: row.measurement.interval.estimate for row in found.ran}
    fastest = min(seconds, key=seconds.get)
    recipe.means(
        f"With a batch of {batch} the graph makes net(x) {plain_ratio(seconds['eager'] / seconds['graph'])} times as "
        f"fast; {fastest} makes it {plain_ratio(seconds['eager'] / seconds[fastest])} times as fast, "
        "with the same answers: for a small net most of the time is not the arithmetic, but getting to it."
    )
    memory = {row.plan.engine: row.measurement.memory for row in found.ran}
    grown = {engine: peak.resident - peak.resident_before for engine, peak in memory.items()}
    smallest = min(grown, key=grown.get)
    recipe.means(
        f"To run the same export TensorFlow takes {format_bytes(grown['saved_model'])} of memory, "
        f"{smallest} {format_bytes(grown[smallest])}; the net itself is {format_bytes(4 * net.net.count_params())}."
    )
    recipe.plot(lambda figure: survey_plots(figure, [found], "get_net, each engine in a process of its own"))


if __name__ == "__main__":
    Recipe(__file__, batch=1).run(main)
