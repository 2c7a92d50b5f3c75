"""A worker dies. And now?

Source: none
Claim: no source document mentions elastic training; Horovod's documentation says that it goes on when workers die,
    and takes up new ones.
Expect: two workers train; one is killed, the other goes on alone, a third joins. Each batch counts once, and the
    weights are those of one process; what the death, the joining and a commit cost. All hosts are this machine.
Holds not: for a rank 0 that dies with the launcher's host: who launches must stay.
Needs: TensorFlow; Horovod (tfperf horovod install); real images (tfperf data fashion_mnist).
Time: about 1 minute on 2 cores; with --quick about 40 s.
Shows: elastic_state, my_part, train_elastically
Try: --epochs 4: twice the batches, and the same seconds for the death and the joining.
"""

import math
import os
import sys
from collections import Counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow warns of float64 once for each function

import keras
import numpy as np

import tfperf.parallel.horovod as hvd
from tfperf import Flag, Recipe, TfperfError, check_agreement
from tfperf.data import NAMES
from tfperf.measure import format_seconds
from tfperf.parallel.rehearsal import RehearsedWorker, rehearse


def elastic_state(build, rate, loss, **progress):
    """Put into one state what all workers share: the net, its optimizer, and how far training has come."""
    hvd.init()  # before TensorFlow uses a GPU
    net = build()
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)  # not times size: all workers together take one batch
    net.compile(hvd.DistributedOptimizer(optimizer), loss)
    return hvd.elastic.KerasState(net, **progress)


def my_part(order, batch, number):
    """Take this worker's part of a batch that is the same however many workers share it."""
    places = np.arange(number * batch, (number + 1) * batch) % len(order)  # after an epoch the order begins again
    return order[places[hvd.rank() :: hvd.size()]]


def train_elastically(state, train_on, batches_per_commit):
    """Go on when workers die or join, and count each batch once."""

    @hvd.elastic.run  # calls the function anew whenever workers have died or joined
    def train(state):
        while state.batch < state.batches:  # a counter outside of the state would not go back with the weights
            train_on(state.batch)
            state.batch += 1
            if state.batch % batches_per_commit == 0:
                state.commit()  # a death loses what comes after it; that is done again

    train(state)


HOSTS = ("localhost", "127.0.0.1", "127.1")  # three names of this machine, three hosts to Horovod
DEATH, JOINING = 47, 60  # batches at which the worker on the second host is killed, and the third host is added
TOGETHER = 100  # batches to train once the third worker has joined
BATCHES_PER_COMMIT, RATE = 10, 0.02
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
TOLERANCE = 1e-9  # relative, in float64: in float32 the order of adding up moves these weights as far as lost batches


def main(recipe: Recipe) -> None:
    """Be one of the workers; or rehearse a death and a joining, and recount."""
    keras.config.set_floatx("float64")
    if recipe.flags.batch % 6:
        raise TfperfError(f"expected a batch that 2 and 3 workers can share. Received: --batch {recipe.flags.batch}")
    data = recipe.load_data(recipe.flags.data, quick=(9600, 1000))
    order = np.random.default_rng(recipe.flags.seed).permutation(len(data.train_images))
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        work(recipe, data, order)
        return
    recipe.console.print(f"Two workers train. {HOSTS[1]} dies at batch {DEATH}, {HOSTS[2]} is added at {JOINING}.")
    command = [sys.executable, __file__, *sys.argv[1:], "--json", "worker.json"]
    rehearsal = rehearse(command, HOSTS[:2], deaths={HOSTS[1]: DEATH}, joins={HOSTS[2]: JOINING})
    hvd.init()  # from here on this process is the only worker
    recount(recipe, data, order, rehearsal)
    tell_costs(recipe, rehearsal)
    choose_commits(recipe, data, order)
    recipe.plot(rehearsal.draw)


def work(recipe: Recipe, data, order) -> None:
    """Train as one of the workers, and note for the rehearsal what was done when."""
    worker, batches = RehearsedWorker(), recipe.flags.epochs * len(order) // recipe.flags.batch
    state = elastic_state(lambda: build(recipe, data), RATE, LOSS, batch=0, batches=batches, ledger=[])

    def train_on(number: int) -> None:
        mine = my_part(order, recipe.flags.batch, number)
        with worker.training_on(number, hvd.size()):
            state.model.train_on_batch(data.train_images[mine], data.train_labels[mine])
        state.ledger.append((number, hvd.size()))

    def wait_for_the_third() -> None:  # a net as small as this is trained before another process has started
        state.batches = math.inf if hvd.size() == 1 else max(batches, state.batch + TOGETHER)

    if worker.is_rehearsing:
        state.register_reset_callbacks([wait_for_the_third])
    train_elastically(state, train_on, BATCHES_PER_COMMIT)
    if hvd.rank() == 0:  # perhaps another one than at the start
        print(f"{len(state.ledger)} batches counted, by workers: {dict(Counter(n for _, n in state.ledger))}")
        worker.hand_in(ledger=[number for number, _ in state.ledger], weights=state.model.get_weights())


def build(recipe: Recipe, data) -> keras.Model:
    """Build a perceptron with this seed's first weights."""
    keras.utils.set_random_seed(recipe.flags.seed)
    hidden = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(128, activation="relu")]
    return keras.Sequential([keras.Input(data.input_shape), *hidden, keras.layers.Dense(data.num_classes)])


def train_alone(recipe: Recipe, data, order, numbers: list[int]) -> keras.Model:
    """Train the same net over these batches in one process, without Horovod."""
    net, batches = build(recipe, data), np.resize(order, (max(numbers) + 1, recipe.flags.batch))
    net.compile(keras.optimizers.SGD(RATE, momentum=0.9), LOSS, metrics=["accuracy"])
    for batch in batches[numbers]:
        net.train_on_batch(data.train_images[batch], data.train_labels[batch])
    return net


def recount(recipe: Recipe, data, order, rehearsal) -> None:
    """Check that no batch counts twice and none is left out: the ledger says so, and the weights prove it."""
    ledger, weights, lost = rehearsal.results["ledger"], rehearsal.results["weights"], rehearsal.repeated()
    net, doubled = (train_alone(recipe, data, order, numbers) for numbers in (ledger, sorted(ledger + lost)))
    alone = net.get_weights()
    recipe.agrees("ledger, against each batch once", np.array(ledger), np.arange(len(ledger)), 0.0)
    same = recipe.agrees("weights, against one process", weights, alone, TOLERANCE)
    wrong = check_agreement("lost batches counted twice", doubled.get_weights(), alone).relative_error
    recipe.fact("batches computed twice, counted once", len(lost))
    recipe.fact("relative error of the weights if those batches had counted twice", wrong)
    recipe.finds(
        f"Training went on. Batches {lost[0]} to {lost[-1]} were computed twice and count once: the weights are those "
        f"of one process to {same.relative_error:.1g}. Counted twice, they would differ by {wrong:.2g}."
    )
    for name, values in {"one process": alone, "elastic": weights}.items():
        net.set_weights(values)
        accuracy = float(net.evaluate(data.test_images, data.test_labels, batch_size=1000, verbose=0)[1])
        recipe.fact(f"test accuracy: {name}", accuracy)
        recipe.finds(f"Test accuracy, {name}: {accuracy:.1%}.")


def tell_costs(recipe: Recipe, rehearsal) -> None:
    """Tell the seconds without progress: after the death, and while the third worker joined."""
    (restart, again), joining = rehearsal.recovery(), rehearsal.joining(HOSTS[2])
    recipe.fact("seconds from the death to the next batch", restart)
    recipe.fact("seconds from the death until the lost batches are done again", again)
    recipe.fact("seconds without a batch while the third worker joined", joining)
    recipe.finds(
        f"The death cost {format_seconds(again)}: {format_seconds(restart)} until the worker that was left trained "
        "again, the rest for the lost batches. "
        f"The joining cost {format_seconds(joining)}: the others wait while the new process starts Python, TensorFlow "
        "and Horovod. A joining pays where much is left to train."
    )


def choose_commits(recipe: Recipe, data, order) -> None:
    """Choose how often to commit, by what a commit costs beside a step."""
    state, batch = elastic_state(lambda: build(recipe, data), RATE, LOSS, ledger=[]), order[: recipe.flags.batch]
    images, labels = data.train_images[batch], data.train_labels[batch]
    ways = {"training step": lambda: state.model.train_on_batch(images, labels), "state.commit()": state.commit}
    comparison = recipe.compare(ways, tolerance=None, what="a commit beside a step")
    step, commit = (measurement.median for measurement in comparison.measurements)
    best = math.sqrt(2 * commit * 3600)  # seconds between commits: Young's approximation (1974) of the optimum
    recipe.fact("commit by step", commit / step)
    recipe.finds(
        f"A commit costs {commit / step:.2f} steps: one every {BATCHES_PER_COMMIT} batches slows training by "
        f"{commit / step / BATCHES_PER_COMMIT:.1%}, and a death loses at most {BATCHES_PER_COMMIT} batches. "
        f"With one death an hour, a commit every {best:.1f} s, or {best / step:,.0f} of these batches, loses least."
    )


if __name__ == "__main__":
    data_flag = Flag("fashion_mnist", "mnist, fashion_mnist or digits", choices=NAMES)
    Recipe(__file__, batch=96, epochs=Flag(2, "epochs to train"), data=data_flag).run(main)
