def build():
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
    net.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def read():
    generator = np.random.default_rng(0)
    inputs, labels = generator.random((64, 4), np.float32), generator.integers(0, 3, 64)
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).shuffle(64, seed=1)


steps = []
note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
node = train_as_node(build, read, 16, 1, [note])  # first, as its strategy wants it
alone, rank = train(build, read, 16, 1), train_as_rank(build, read, 16, 1)
assert steps == [0, 1, 2, 3]
for first, one, by_node, by_rank in zip(*(net.get_weights() for net in (build(), alone, node, rank)), strict=True):
    assert np.abs(one - first).max() > 1e-2
    np.testing.assert_allclose(by_node, one, atol=1e-6)
    np.testing.assert_allclose(by_rank, one, atol=1e-6)
