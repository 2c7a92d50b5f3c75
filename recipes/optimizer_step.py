"""How much of a training step does the optimizer take?

Source: 003, 算子融合
Claim: fusing operators lowers what bandwidth costs; users can fuse pointwise operations by hand. The examples are
    PyTorch's, with TorchScript. The source names no figure.
Expect: a step of a small net of many variables and of a large one: the gradients alone, and with three ways to update.
Holds not: for embeddings, whose gradients are sparse: Keras's formulas stay; nor where a step is mostly arithmetic.
Needs: TensorFlow; no GPU, no data.
Time: about 60 s on 2 cores; with --quick about 20 s.
Shows: OneOperationAdam, step_in_graph, update_outside
Try: --batch 512: eight times the arithmetic for the same update, so the optimizer's share of the large net falls.
"""

from functools import partial

import keras
import numpy as np
import tensorflow as tf

from tfperf import Comparison, Recipe


class OneOperationAdam(keras.optimizers.Adam):
    """Update each variable by one operation, which goes through it once, with Keras's formulas and states."""

    def apply(self, grads, trainable_variables=None):
        """Compute what all variables share; as tensors, since a trace would keep Python numbers for ever."""
        step = tf.cast(self.iterations + 1, tf.float32)
        self.power_1, self.power_2 = self.beta_1**step, self.beta_2**step
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        """Update a variable, as Keras calls it."""
        if isinstance(gradient, tf.IndexedSlices):  # of an embedding; the operation takes whole gradients only
            super().update_step(gradient, variable, learning_rate)
            return
        index, rate = self._get_variable_index(variable), tf.cast(learning_rate, tf.float32)
        states = {"m": self._momentums[index].value.handle, "v": self._velocities[index].value.handle}
        rates = {"lr": rate, "beta1": self.beta_1, "beta2": self.beta_2, "epsilon": self.epsilon}
        powers = {"beta1_power": self.power_1, "beta2_power": self.power_2}
        tf.raw_ops.ResourceApplyAdam(var=variable.handle, grad=gradient, **states, **rates, **powers)


def step_in_graph(net, optimizer, gradients_of):
    """Trace the gradients and the update as one graph, which TensorFlow runs without Python in between."""
    optimizer.build(net.trainable_variables)  # a trace must not make variables
    return tf.function(lambda *batch: optimizer.apply(gradients_of(net, *batch), net.trainable_variables))


def update_outside(net, optimizer, gradients_of):
    """Make the usual mistake: trace the gradients alone, so that Python calls each operation of the update."""
    optimizer.build(net.trainable_variables)
    traced = tf.function(lambda *batch: gradients_of(net, *batch))
    return lambda *batch: optimizer.apply(traced(*batch), net.trainable_variables)


ADAM, FAST, OUTSIDE, ALONE = "Adam as Keras has it", "Adam in one operation", "outside the graph", "gradients alone"
NETS = {"small, of many variables": (50, 16), "large, of few variables": (2, 2048)}  # hidden layers, units of each
PASSING = {"Const", "Identity", "NoOp", "Placeholder", "ReadVariableOp"}  # operations that compute nothing
CLASSES, LOSS = 10, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def main(recipe: Recipe) -> None:
    """Check that both optimizers update alike, measure steps of both nets, and take the gradients' time from them."""
    check(recipe)
    seconds = {}
    for name, (layers, units) in NETS.items():
        generator = tf.random.Generator.from_seed(recipe.flags.seed)
        inputs = generator.normal([recipe.flags.batch, units])
        labels = generator.uniform([recipe.flags.batch], maxval=CLASSES, dtype=tf.int64)
        nets = [build(layers, units, recipe.flags.seed) for _ in range(4)]
        steps = {
            ALONE: tf.function(partial(gradients_of, nets[0])),
            ADAM: step_in_graph(nets[1], keras.optimizers.Adam(), gradients_of),
            FAST: step_in_graph(nets[2], OneOperationAdam(), gradients_of),
            OUTSIDE: update_outside(nets[3], keras.optimizers.Adam(), gradients_of),
        }
        comparison = recipe.compare(steps, inputs, labels, tolerance=None, what=f"a step: {name}")
        counts = {way: count_operations(steps[way], inputs, labels) for way in (ALONE, ADAM, FAST)}
        seconds[name] = explain(recipe, name, nets[0], counts, comparison)
    recipe.corrects("nobody need fuse Adam by hand: TensorFlow has ResourceApplyAdam. TorchScript is deprecated.")
    recipe.plot(draw, seconds)


def check(recipe: Recipe) -> None:
    """Change a thousand numbers by the same hundred gradients, as Keras does and by the one operation."""
    gradients, results = np.random.default_rng(recipe.flags.seed).normal(size=(100, 1000)), []
    for optimizer in (keras.optimizers.Adam(), OneOperationAdam()):
        variable = keras.Variable(np.ones(1000), dtype="float32")
        optimizer.build([variable])
        for gradient in gradients:
            optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
        results.append(variable.numpy())
    recipe.agrees(f"{FAST}: weights after 100 updates", results[1], results[0], 1e-5)


def build(layers: int, units: int, seed: int) -> keras.Model:
    """Build a net of equal dense layers, with the same weights each time."""
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(units, "relu", kernel_initializer="he_normal") for _ in range(layers)]
    return keras.Sequential([keras.Input([units]), *hidden, keras.layers.Dense(CLASSES)])


def gradients_of(net: keras.Model, inputs, labels) -> list:
    """Compute the gradients of a batch."""
    with tf.GradientTape() as tape:
        loss = LOSS(labels, net(inputs, training=True))
    return tape.gradient(loss, net.trainable_variables)


def count_operations(step, *batch) -> int:
    """Count the operations that compute, in the trace of a step."""
    graph = step.get_concrete_function(*batch).graph
    return sum(operation.type not in PASSING for operation in graph.get_operations())


def explain(recipe: Recipe, name: str, net: keras.Model, counts: dict, comparison: Comparison) -> dict:
    """Say what the update is of a step in each way; gives way -> seconds of the gradients and of the update."""
    alone, variables, weights = comparison[ALONE].median, len(net.trainable_variables), net.count_params()
    update = {way: max(0.0, comparison[way].median - alone) for way in (ADAM, FAST, OUTSIDE)}
    shares = {way: update[way] / comparison[way].median for way in update}
    operations = {way: (counts[way] - counts[ALONE]) / variables for way in (ADAM, FAST)}
    for what, values in {"share of a step": shares, "operations a variable": operations}.items():
        for way, value in values.items():
            recipe.fact(f"{what}, {way}: {name}", value)
    faster, slower = comparison.ratio(ADAM, FAST), comparison.ratio(OUTSIDE, ADAM)
    saved, small = update[ADAM] - update[FAST], weights < 1000 * variables  # whether the number of variables costs
    each = f"{saved / variables * 1e6:.0f} us a variable" if small else f"{saved / weights * 1e9:.1f} ns a weight"
    recipe.finds(
        f"{name} ({variables} variables, {weights:,} weights): as Keras has it the update is {operations[ADAM]:.0f} "
        f"operations a variable and {shares[ADAM]:.0%} of a step, in one operation {shares[FAST]:.0%}. The step is "
        f"{faster.estimate:.2f} times as fast [{faster.low:.2f}, {faster.high:.2f}]: {each} less."
    )
    recipe.finds(f"{name}: with the update outside the graph a step takes {slower.estimate:.1f} times as long.")
    return {way: (alone, seconds) for way, seconds in update.items()}


def draw(figure, seconds: dict) -> None:
    """Draw for each net what of a step is the gradients, and what the update."""
    for axes, (name, ways) in zip(figure.subplots(1, 2, sharey=True), seconds.items(), strict=True):
        alone, update = np.multiply(list(zip(ways[ADAM], ways[FAST], strict=True)), 1e3)
        axes.barh([ADAM, FAST], alone, color="tab:green", label="gradients")
        axes.barh([ADAM, FAST], update, left=alone, color="tab:orange", label="update")
        axes.set(title=f"{name}\n({OUTSIDE}: {sum(ways[OUTSIDE]) * 1e3:.0f} ms)", xlabel="ms of a step")
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)


if __name__ == "__main__":
    Recipe(__file__, batch=64).run(main)
