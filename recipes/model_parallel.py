"""What if the net is too big for one device?

Source: 002, 6.2.2 单机多卡并行
Claim: model parallelism cuts a net into n pieces; each GPU computes one piece, forward and backward. It is mostly used
    for nets that do not fit one GPU; where the net fits, data parallelism is usually faster. The source has no figure.
Expect: a net in two stages on two devices, which computes and trains as the whole net; micro-batches that let both work
    at once; and the bubble, the share of time they wait, predicted and measured.
Holds not: with batch normalization, whose statistics become a micro-batch's; stages that share memory slow each other.
Needs: TensorFlow; two GPUs where there are some, else two logical CPU devices; no data.
Time: about 80 s on 2 cores; with --quick about 15 s.
Shows: stage_on, pipelined, expected_bubble
Try:
    - --layers 9: the stages are unequal, and the bubble is larger than that of equal ones.
    - --batch 512: micro-batches are small, and reading the weights takes more of their time: pipelining gains less.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, TfperfError
from tfperf.parallel import Pipeline, Timeline, find_devices, pipeline_bubble


def stage_on(device, layers):
    """Build some layers on a device and run them there, so that no device has to hold the whole net."""
    with tf.device(device):
        net = keras.Sequential(layers)  # begins with keras.Input: the weights are made now, on this device

    @tf.function
    def stage(x):
        with tf.device(device):  # the inputs are copied to it
            return net(x)

    return stage


def pipelined(stages, batch, micro_batches):
    """Let every stage work on another micro-batch: each has a thread, which takes them in order."""
    workers, ends = [ThreadPoolExecutor(1) for _ in stages], []
    for part in tf.split(batch, micro_batches):
        passed = workers[0].submit(stages[0], part)
        for worker, stage in zip(workers[1:], stages[1:], strict=True):
            passed = worker.submit(lambda stage=stage, before=passed: stage(before.result()))
        ends.append(passed)
    return tf.concat([end.result() for end in ends], axis=0)


def expected_bubble(stages, micro_batches):
    """Predict the share of their time that equal stages wait for work; it does not depend on their speed."""
    return (stages - 1) / (micro_batches + stages - 1)


STAGES, MICRO_BATCHES, WIDTH, STEPS = 2, (1, 2, 4, 8), 512, 20
PHASES = {"forward": ["forward"], "training": ["forward", "backward"]}


def main(recipe: Recipe) -> None:
    """Split a net by its layers, check it, and fill its pipeline with more and more micro-batches."""
    batch, layers = recipe.flags.batch // (4 if recipe.flags.quick else 1), recipe.flags.layers
    if batch % MICRO_BATCHES[-1] or layers < STAGES:
        wanted = f"expected --batch to be a multiple of {MICRO_BATCHES[-1]} and --layers at least {STAGES}"
        raise TfperfError(f"{wanted}. Received: a batch of {batch}, --layers {layers}")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # on a CPU, each stage then has one core
    devices = find_devices(STAGES)
    recipe.console.print(f"Devices: {', '.join(devices)}{'' if 'GPU' in devices[0] else ', parts of one CPU'}")
    keras.utils.set_random_seed(recipe.flags.seed)
    net = keras.Sequential([keras.Input([WIDTH]), *(keras.layers.Dense(WIDTH, "relu") for _ in range(layers))])
    inputs = tf.random.normal([batch, WIDTH], seed=recipe.flags.seed)
    cut, first = layers // STAGES, keras.Input([WIDTH])
    stages = [stage_on(devices[0], [first, *net.layers[:cut]]), stage_on(devices[1], [first, *net.layers[cut:]])]
    recipe.agrees("by hand, 4 micro-batches", pipelined(stages, inputs, 4), net(inputs))
    pipeline = Pipeline(net, devices)
    check_training(recipe, net, pipeline, inputs[:64])
    limit = max(recipe.flags.time_limit, 3.0 if recipe.flags.quick else 10.0)  # for 8 rounds
    ways = {f"{STAGES} stages, {m} micro-batches": partial(pipeline, micro_batches=m) for m in MICRO_BATCHES}
    comparison = recipe.compare({"one device": tf.function(net)} | ways, inputs, time_limit=limit)
    ratio = comparison.ratio("one device", list(ways)[-1])
    speed = f"{ratio.estimate:.2f} times the speed of one device [{ratio.low:.2f}, {ratio.high:.2f}]"
    recipe.finds(f"{list(ways)[-1]}: {ratio.verdict}, {speed}; with 1, the devices work in turns.")
    bubbles, timelines = measure_bubbles(recipe, pipeline, inputs)
    held = " and ".join(f"{stage.net.count_params():,}" for stage in pipeline.stages)
    recipe.finds(f"The devices hold {held} weights, and neither holds the whole net.")
    recipe.corrects(
        "several GPUs allow a larger net only if it is split; with data parallelism (001, 12.5) each holds all of it. "
        "In pieces but without micro-batches, n devices are not faster than one."
    )
    recipe.plot(draw, timelines, bubbles)


def check_training(recipe: Recipe, net, pipeline: Pipeline, rows) -> None:
    """Train the whole net and the pipeline alike, and compare their weights."""
    pipeline.compile(keras.optimizers.SGD(0.01), "mse")
    net.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    for _ in range(STEPS):
        net.train_on_batch(rows, rows)
        pipeline.train_on_batch(rows, rows, micro_batches=4)
    whole = net.get_weights()
    pipeline.write_back()
    # In one row: where rounding switches a unit on in one net alone, its bias differs by much of its small self
    in_a_row = (np.concatenate([*map(np.ravel, weights)]) for weights in (net.get_weights(), whole))
    recipe.agrees(f"weights after {STEPS} steps in 4 micro-batches", *in_a_row)


def measure_bubbles(recipe: Recipe, pipeline: Pipeline, inputs) -> tuple[dict, dict[int, Timeline]]:
    """Read the bubble from timelines, and predict it from the tasks' times; for outputs and for training steps."""
    calls = {"forward": pipeline, "training": lambda x, m: pipeline.train_on_batch(x, x, m)}
    bubbles, timelines, rows = {}, {}, []
    for name, phases in PHASES.items():
        for m in MICRO_BATCHES:
            runs = []
            for _ in range(6 if recipe.flags.quick else 16):
                calls[name](inputs, m)
                timelines[name, m] = timeline = pipeline.timeline
                runs.append((pipeline_bubble(m, *map(timeline.task_seconds, phases)), timeline.bubble))
            predicted, measured = np.median(runs[1:], axis=0)
            bubbles[name, m] = expected_bubble(STAGES, m), predicted, measured
            recipe.fact(f"bubble measured, {name}, {m} micro-batches", float(measured))
            rows.append((name, m, *(f"{value:.1%}" for value in bubbles[name, m])))
    recipe.table(["", "micro-batches", "equal stages", "predicted", "measured"], rows)
    worst = max(abs(measured / predicted - 1) for _, predicted, measured in bubbles.values())
    recipe.fact("largest difference of a bubble from its prediction, as a share of it", float(worst))
    recipe.finds(f"Bubbles differ by at most {worst:.0%} from those predicted from the tasks' times.")
    recipe.finds("On a CPU a stage that works alone takes the other's core too, and is faster than beside it.")
    return bubbles, {m: timelines["forward", m] for m in (1, 4)}


def draw(figure, timelines: dict[int, Timeline], bubbles: dict) -> None:
    """Show when each stage worked, and the bubbles."""
    axes = figure.subplot_mosaic([[1, "bubble"], [4, "bubble"]])
    for m, timeline in timelines.items():
        begin = min(task.start for task in timeline.tasks)
        for task in timeline.tasks:
            bar = [((task.start - begin) * 1e3, (task.end - task.start) * 1e3)]
            axes[m].broken_barh(bar, (task.stage - 0.4, 0.8), color=f"C{task.micro_batch}", edgecolor="white")
        axes[m].set_yticks(range(STAGES), [f"stage {stage}" for stage in range(STAGES)])
        axes[m].set_title(f"{m} micro-batch{'es' * (m > 1)}, forward, in ms", loc="left")
    for name in PHASES:
        axes["bubble"].plot(MICRO_BATCHES, [bubbles[name, m][2] for m in MICRO_BATCHES], "o", label=f"measured, {name}")
    equal = [expected_bubble(STAGES, m) for m in MICRO_BATCHES]
    axes["bubble"].plot(MICRO_BATCHES, equal, "k--", label="predicted, equal stages")
    axes["bubble"].set(xlabel="micro-batches", ylabel="share of time the stages wait", ylim=0)
    axes["bubble"].legend()


if __name__ == "__main__":
    Recipe(__file__, batch=8192, layers=Flag(8, "Dense layers of the net")).run(main)
