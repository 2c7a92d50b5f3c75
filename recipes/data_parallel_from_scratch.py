"""How does data parallelism work?

Source: 002, 6.2.3.2 代码实践, 从零开始实现
Claim: each device takes the gradient of its part of a batch, allreduce adds them up, and all devices make one update.
    The listing trains LeNet on 2 GPUs, batch 256, rate 0.2, 10 epochs. The source did not run it, and shows no figure.
Holds not: with batch normalization or dropout; and parts of one CPU gain only what one leaves idle of its cores.
Needs: TensorFlow; real images (tfperf data fashion_mnist); GPUs where there are any, else logical CPU devices.
Time: about 3 minutes on 2 cores; with --quick about 30 s.
Shows: get_params, split_batch, allreduce, sources_allreduce, train_batch
Try: --devices 4, without --quick: the source's replicas drift further apart, as each has less of the gradient.
"""

import time
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from tfperf import Flag, Recipe, TfperfError
from tfperf.data import training_batches
from tfperf.parallel import find_devices


def get_params(params, device):
    """Give a device weights of its own, equal to all others, and a place for their gradients."""
    with tf.device(device):
        return [tf.Variable(value) for value in params], [tf.Variable(tf.zeros_like(value)) for value in params]


def split_batch(batch, devices):
    """Give each device an equal part of the batch."""
    shards = []
    for device, *part in zip(devices, *(tf.split(tensor, len(devices)) for tensor in batch), strict=True):
        with tf.device(device):
            shards.append([tf.identity(tensor) for tensor in part])
    return shards


def allreduce(data):
    """Add up the gradients of all devices on the first one, and write the sum into each device's own."""
    data[0].assign(tf.add_n(data))
    for gradient in data[1:]:
        gradient.assign(data[0])


def sources_allreduce(data):
    """Put the sum into the list, as the source does: the gradients that devices update with stay as they were."""
    data[0].assign(tf.add_n(data))
    for i in range(1, len(data)):
        data[i] = tf.identity(data[0])


def train_batch(net, replicas, devices, batch, rate, reduce=allreduce):
    """Train on one batch as one device would: a gradient on each device, one sum, and the same update everywhere."""
    for (weights, gradients), device, (x, y) in zip(replicas, devices, split_batch(batch, devices), strict=True):
        with tf.device(device):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x, weights)))
            for gradient, value in zip(gradients, tape.gradient(loss, weights), strict=True):
                gradient.assign(value)
    for of_one_weight in zip(*(gradients for _, gradients in replicas), strict=True):
        reduce(list(of_one_weight))
    for weights, gradients in replicas:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(rate / batch[1].shape[0] * gradient)  # a sum over all images by their number: the mean


RATE, SCALE, EXACT = 0.2, 0.03, 20  # first deviation: the source's 0.01 learns nothing in 60 steps; steps compared
SHAPES = [(3, 3, 1, 20), (5, 5, 20, 50), (800, 128), (128, 10)]  # the source's 20x1x3x3 and 50x20x5x5, channels last


def main(recipe: Recipe) -> None:
    """Train LeNet on one device and on several, with the right allreduce and with the source's."""
    devices, batch = find_devices(recipe.flags.devices), recipe.flags.batch
    if batch % len(devices):
        raise TfperfError(f"expected --batch to be a multiple of {len(devices)} devices. Received: --batch {batch}")
    data, generator = recipe.load_data(quick=(7680, 2000)), np.random.default_rng(recipe.flags.seed)
    params = [v for shape in SHAPES for v in (SCALE * generator.standard_normal(shape, "f"), np.zeros(shape[-1], "f"))]
    several = f"{len(devices)} devices"
    alone = train(recipe, data, params, devices[:1], allreduce)
    right, wrong = (train(recipe, data, params, devices, reduce) for reduce in (allreduce, sources_allreduce))
    few = data.take(min(7 * batch, len(data.train_images)), 100)
    exact = [train(recipe, few, [v.astype("d") for v in params], on, allreduce) for on in (devices[:1], devices)]
    error = recipe.agrees(f"{several} in float64, weights of {EXACT} steps", exact[1].course, exact[0].course, 1e-9)
    rounding = np.abs(np.subtract(right.course, alone.course)).max() / np.abs(alone.course).max()
    steps = {"one device": alone.step, several: right.step}
    ratio = recipe.compare(steps, tolerance=None, what="one training step").ratio("one device", several)
    ways = {"one device": alone, several: right, f"{several}, source's": wrong}
    recipe.fact(f"test accuracy: {several}", right.accuracies[0])
    rows = [(name, f"{w.seconds:.1f}", f"{w.accuracies[0]:.1%}", f"{w.apart[-1]:.1%}") for name, w in ways.items()]
    recipe.table(("trained on", "s/epoch", "accuracy of replica 0", "replicas apart"), rows)
    recipe.finds(
        f"{several} give the weights of one to {error.relative_error:.0e}; in float32 to {rounding:.0e}, as rounding "
        f"can flip a ReLU. They have {ratio.estimate:.2f} times the speed of one: {ratio.verdict}."
    )
    correct(recipe, wrong)
    recipe.plot(draw, np.transpose([right.apart, wrong.apart]))


def train(recipe: Recipe, data, params: list, devices: list[str], reduce) -> SimpleNamespace:
    """Train LeNet for some epochs; record its first weights, the replicas' distances, accuracies and time."""
    replicas, seconds, course, apart = [get_params(params, device) for device in devices], 0.0, [], []
    step = tf.function(lambda *batch: train_batch(lenet, replicas, devices, batch, RATE, reduce), autograph=False)
    for epoch in range(recipe.flags.epochs):
        for x, y in training_batches(data, recipe.flags.batch, seed=recipe.flags.seed + epoch, reshuffle=False):
            start = time.perf_counter()
            step(tf.cast(x, params[0].dtype), y)
            first, *others = [np.concatenate([w.numpy().ravel() for w in weights]) for weights, _ in replicas]
            seconds += (time.perf_counter() - start) / recipe.flags.epochs  # the weights of every device are there
            apart.append(max((np.linalg.norm(one - first) for one in others), default=0.0) / np.linalg.norm(first))
            course += [first][: EXACT - len(course)]
    parts = np.array_split(data.test_images / params[0].dtype.type(255), 10)
    classes = [np.concatenate([np.argmax(lenet(part, weights), 1) for part in parts]) for weights, _ in replicas]
    accuracies = [float(np.mean(one == data.test_labels)) for one in classes]
    return SimpleNamespace(step=lambda: step(x, y), course=course, apart=apart, accuracies=accuracies, seconds=seconds)


def lenet(x, params):
    """Compute the source's LeNet: images (batch, 28, 28, 1) to logits (batch, 10)."""
    for kernel, bias in (params[:2], params[2:4]):
        x = tf.nn.avg_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "VALID") + bias), 2, 2, "VALID")
    return tf.nn.relu(tf.reshape(x, [-1, 800]) @ params[4] + params[5]) @ params[6] + params[7]


def correct(recipe: Recipe, wrong: SimpleNamespace) -> None:
    """Run the source's test of its allreduce, which passes; then say what it leaves wrong."""
    held = [tf.Variable([1.0, 1.0]), tf.Variable([2.0, 2.0])]
    sources_allreduce(data := list(held))
    shown, true = (" and ".join(str(one.numpy()) for one in them) for them in (data, held))
    recipe.fact("distance of the source's replicas as a share of the weights", float(wrong.apart[-1]))
    recipe.corrects(
        "`data[i] = ...` binds an item of a list anew; write `data[i][:] = ...`, or `assign` in TensorFlow. The "
        f"source's test prints that list, {shown}, and passes; the gradients are then {true}."
    )
    recipe.corrects(
        f"with its allreduce replicas are {wrong.apart[-1]:.1%} apart after {len(wrong.apart)} steps. The source tests "
        f"replica 0 ({wrong.accuracies[0]:.1%} right), not the last ({wrong.accuracies[-1]:.1%}), and times one GPU."
    )
    recipe.corrects("the last of the five steps updates the parameters, with the gradient; not the gradient.")


def draw(figure, apart: np.ndarray) -> None:
    """Draw how far the replicas are apart after each step, with each allreduce."""
    axes = figure.subplots(subplot_kw={"xlabel": "step", "ylabel": "distance of the replicas, % of the weights"})
    axes.plot(100 * apart, label=["the right allreduce", "the source's"])
    axes.legend()


if __name__ == "__main__":
    Recipe(__file__, batch=256, devices=Flag(2, "devices"), epochs=Flag(3, "epochs; the source has 10")).run(main)
