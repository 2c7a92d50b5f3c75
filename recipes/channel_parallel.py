"""What if the net is too big for one device: split each layer by its channels?

Source: 002, 6.2.2 单机多卡并行
Claim: work is usually split among GPUs by data, by model or by channels. The source says no more of the last one.
Expect: a net with a part of every layer on each device and equal outputs; the bytes they exchange, by layer, predicted
    and counted in the graph; the batch up to which that is less than data parallelism exchanges.
Holds not: between machines: every pair of layers waits for an exchange, which only fast links between devices bear.
Needs: TensorFlow; two GPUs where there are some, else two logical CPU devices; no data.
Time: about 30 s on 2 cores; with --quick about 20 s.
Shows: by_output_channels, by_input_channels, bytes_of_a_pair
Try:
    - --hidden 64: the Dense layers exchange less than with data parallelism only up to batches of 64.
    - --batch 8: the exchanges shrink with the batch, but not their number, so splitting costs a larger share.
"""

import keras
import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, TfperfError
from tfperf.measure import format_bytes
from tfperf.parallel import ChannelSplit, find_devices


def by_output_channels(x, kernel, bias, devices):
    """Give each device some output channels: it needs all inputs, and nothing from the others."""
    parts = []
    columns, biases = np.array_split(kernel, len(devices), axis=-1), np.array_split(bias, len(devices))
    for device, its_columns, its_bias in zip(devices, columns, biases, strict=True):
        with tf.device(device):
            parts.append(tf.nn.relu(tf.matmul(x, its_columns) + its_bias))
    return parts


def by_input_channels(parts, kernel, bias, devices):
    """Let each device use the channels it has: their partial sums are added, and the bias only once."""
    ends = np.cumsum([part.shape[-1] for part in parts])[:-1]
    sums = []
    for device, part, its_rows in zip(devices, parts, np.split(kernel, ends), strict=True):
        with tf.device(device):
            sums.append(tf.matmul(part, its_rows))  # + bias here would add it once for each device
    return tf.add_n(sums) + bias  # the only exchange of the two layers


def bytes_of_a_pair(weights, activations, batch, devices):
    """Compare what a training step exchanges for two layers: gradients by data, inputs and outputs by channels."""
    return {"by data": 2 * (devices - 1) * 4 * weights, "by channels": 2 * (devices - 1) * 4 * activations * batch}


DEVICES, BATCHES = 2, 2 ** np.arange(13)


def main(recipe: Recipe) -> None:
    """Split a convolutional net by its channels, check it, and count what its devices exchange."""
    batch, hidden = recipe.flags.batch, recipe.flags.hidden
    if hidden < DEVICES:
        raise TfperfError(f"expected --hidden to be at least {DEVICES}. Received: --hidden {hidden}")
    tf.config.threading.set_intra_op_parallelism_threads(1)  # on a CPU, each device then has one core
    devices = find_devices(DEVICES)
    recipe.console.print(f"Devices: {', '.join(devices)}{'' if 'GPU' in devices[0] else ', parts of one CPU'}")
    keras.utils.set_random_seed(recipe.flags.seed)
    net = build(hidden)
    images = tf.random.normal([batch, *net.input_shape[1:]], seed=recipe.flags.seed)
    check_by_hand(recipe, net, devices)
    split = ChannelSplit(net, devices)
    recipe.console.print("; ".join(f"{name} is split by its {way}" for name, way in split.split_layers.items()))
    comparison = recipe.compare({"one device": tf.function(net), "split by channels": split}, images)
    ratio = comparison.ratio("one device", "split by channels")
    share = max(split.weight_bytes) / sum(array.nbytes for array in net.get_weights())
    recipe.fact("largest share of the weights on a device", share)
    recipe.finds(f"Each device holds at most {share:.0%} of the weights, and the outputs are equal.")
    speed = f"{ratio.estimate:.2f} times the speed of one device [{ratio.low:.2f}, {ratio.high:.2f}]"
    recipe.finds(
        f"Split by channels: {ratio.verdict}, {speed}; each pair of layers ends in an exchange that all await."
    )
    count(recipe, split, batch)
    pairs = compare_with_data(recipe, net, split)
    recipe.corrects(
        "channel parallelism is named and not described; it is today's tensor parallelism (Megatron-LM, 2019). Against "
        "001, 12.5: data parallelism allows no larger net, as each device holds all of it; this split does."
    )
    recipe.plot(draw, pairs)


def build(hidden: int):
    """Build a net of two pairs: convolutions, which have few weights, and Dense layers, which have many."""
    layers = [
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(hidden, "relu"),
        keras.layers.Dense(10),
    ]
    return keras.Sequential([keras.Input([28, 28, 1]), *layers])


def check_by_hand(recipe: Recipe, net, devices: list[str]) -> None:
    """Split the Dense pair as shown above, with biases that are not 0, so that a wrong one is noticed."""
    first, second = net.layers[-2:]
    for layer in (first, second):
        layer.bias.assign(tf.random.normal(layer.bias.shape, seed=recipe.flags.seed))
    x = tf.random.normal([16, first.kernel.shape[0]], seed=recipe.flags.seed)
    outputs = by_input_channels(by_output_channels(x, *first.get_weights(), devices), *second.get_weights(), devices)
    recipe.agrees("a pair of Dense layers by hand", outputs, second(first(x)))


def count(recipe: Recipe, split: ChannelSplit, batch: int) -> None:
    """Compare the bytes that the shapes predict with those between devices in TensorFlow's graph."""
    counted, predicted, kinds = split.count_bytes(batch), {}, {}
    for exchange in split.exchanges:
        predicted[exchange.layer] = predicted.get(exchange.layer, 0) + batch * exchange.bytes_per_example
        kinds[exchange.layer] = exchange.kind
    rows = [(n, kinds[n], format_bytes(predicted[n]), format_bytes(counted.get(n, 0))) for n in predicted]
    recipe.table(["layer", "exchange", "predicted", "counted"], rows)
    recipe.fact("bytes exchanged are as predicted, for each layer", counted == predicted)
    total, words = format_bytes(sum(counted.values())), "exactly" if counted == predicted else "not"
    recipe.finds(f"The devices exchange {total} for {batch} examples, {words} as predicted.")


def compare_with_data(recipe: Recipe, net, split: ChannelSplit) -> dict[str, list[dict[str, int]]]:
    """Find for each pair of layers the batch up to which channels exchange less than data parallelism."""
    layers, pairs = [net.get_layer(name) for name in split.split_layers], {}
    for first, second in zip(layers[::2], layers[1::2], strict=True):
        name, weights = f"{first.name} and {second.name}", first.count_params() + second.count_params()
        inputs = 0 if first is net.layers[0] else np.prod(first.input.shape[1:])  # images need no gradient
        activations = int(inputs + np.prod(second.output.shape[1:]))
        pairs[name] = [bytes_of_a_pair(weights, activations, int(batch), DEVICES) for batch in BATCHES]
        recipe.fact(f"batch up to which channels exchange less: {name}", weights / activations)
        until = f"for batches up to {weights // activations}" if weights >= activations else "for no batch"
        recipe.finds(
            f"{name}: {weights:,} weights, {activations:,} activations to exchange per example: in training, channels "
            f"exchange less than data parallelism {until}."
        )
    return pairs


def draw(figure, pairs: dict[str, list[dict[str, int]]]) -> None:
    """Show the bytes of a training step against the batch."""
    for panel, (name, sizes) in zip(figure.subplots(1, len(pairs), sharey=True), pairs.items(), strict=True):
        for way in sizes[0]:
            panel.loglog(BATCHES, [size[way] / 2**20 for size in sizes], "o-", markersize=3, label=way)
        panel.set(xlabel="batch", title=name, ylabel="MiB exchanged in a training step")
        panel.label_outer()
        panel.legend(title="split")


if __name__ == "__main__":
    Recipe(__file__, batch=64, hidden=Flag(256, "units of the hidden Dense layer")).run(main)
