tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
)
alone, both = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
generator = np.random.default_rng(0)
images, labels = generator.random((16, 6, 6, 1), np.float32), np.arange(16) % 3
options = tf.data.Options()
options.autotune.enabled = False
batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8).with_options(options)


def build():
    keras.utils.set_random_seed(0)
    layers = [keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(3)])


def weights(build, strategy):
    net = mirror(build, strategy, 0.1)
    net.fit(batches, verbose=0, shuffle=False)
    assert net.distribute_strategy.num_replicas_in_sync == (2 if strategy is both else 1)
    return np.concatenate([weight.numpy().ravel() for weight in net.trainable_weights])


def synchronized():
    return synchronize(build())


assert [layer.synchronized for layer in synchronized().layers if "norm" in layer.name] == [True]
np.testing.assert_allclose(weights(synchronized, both), weights(synchronized, alone), atol=1e-5)
assert np.abs(weights(build, both) - weights(build, alone)).max() > 1e-3

refused = ""
try:
    forget_the_scope(build, both, 0.1).fit(batches, verbose=0)
except Exception as error:
    refused = type(error).__name__
assert refused == "AssertionError"
