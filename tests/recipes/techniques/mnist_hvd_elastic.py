from horovod.common.exceptions import HorovodInternalError


def build():
    net = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    net.set_weights([np.ones((4, 1)), np.zeros(1)])
    return net


def train_on(number):
    done.append(number)
    if done == [0, 1, 2, 3, 4, 5, 6]:
        raise HorovodInternalError  # what those that are left see when a worker dies
    mine = my_part(order, 8, number)
    state.model.train_on_batch(examples[mine], targets[mine])
    state.ledger.append(number)


generator = np.random.default_rng(0)
order, examples, targets = generator.permutation(24), generator.random((24, 4)), generator.random((24, 1))
done = []
state = elastic_state(build, 0.1, "mse", batch=0, batches=9, ledger=[])
assert sorted(np.concatenate([my_part(order, 8, number) for number in range(3)])) == list(range(24))
assert (my_part(order, 8, 3) == my_part(order, 8, 0)).all()  # the next epoch
train_elastically(state, train_on, 4)
assert done == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8]
assert state.ledger == list(range(9))
alone = build()
alone.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
for number in range(9):
    alone.train_on_batch(*(array[order.reshape(3, 8)[number % 3]] for array in (examples, targets)))
np.testing.assert_allclose(state.model.get_weights()[0], alone.get_weights()[0], rtol=1e-5)
