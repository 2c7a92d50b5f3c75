devices = find_devices(2)
images = np.random.default_rng(0).random((8, 6, 6, 1), np.float32)
labels = np.arange(8) % 3
nets = []
for policy, places in (("float32", None), ("float32", devices), ("mixed_float16", devices), ("mixed_bfloat16", None)):
    keras.utils.set_random_seed(0)
    net = mixed_and_mirrored(lambda: cnn((6, 6, 1), 3), places, policy)
    nets.append(net)
    kernel = net.layers[0].kernel.value
    assert len(net.distribute_strategy.experimental_local_results(kernel)) == len(places or devices[:1])
    assert net.layers[0](images).dtype == policy.removeprefix("mixed_")  # the convolution computes in half precision,
    assert net(images).dtype == kernel.dtype == tf.float32  # and logits and weights are in float32
    assert isinstance(net.optimizer, keras.optimizers.LossScaleOptimizer) == (policy == "mixed_float16")
    options = tf.data.Options()
    options.autotune.enabled = False
    net.fit(tf.data.Dataset.from_tensors((images, labels)).with_options(options), epochs=2, shuffle=False, verbose=0)

assert keras.config.dtype_policy().name == "float32"  # it is set for these nets only
assert len(devices) == 2 or tf.config.list_physical_devices("GPU")
one, mirrored, *half = (net(images) for net in nets)
np.testing.assert_allclose(mirrored, one, atol=1e-5)  # two replicas, each with half of the batch, train as one device
for logits in half:
    np.testing.assert_allclose(logits, one, atol=0.05)
