assert scaled_rate(0.01, 512, 32) == 0.16
assert scaled_twice(0.01, 512, 32) == 16 * scaled_rate(0.01, 512, 32)
np.testing.assert_allclose([warm_up(0.3, 30)(step) for step in (0, 15, 30, 1000)], [0.01, 0.155, 0.3, 0.3], rtol=1e-5)

# the mistake: a summed loss and a scaled rate take the step of a mean loss and a rate that is scaled twice
images, labels = np.random.default_rng(0).random((8, 4), np.float32), np.arange(8) % 3
ends = []
for reduction, rate in (("sum", scaled_rate(0.1, 8, 1)), ("sum_over_batch_size", scaled_twice(0.1, 8, 1))):
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    net.compile(keras.optimizers.SGD(warm_up(rate, 1)), loss, jit_compile=False)
    net.train_on_batch(images, labels)
    ends.append(net.get_weights()[0])
np.testing.assert_allclose(*ends, rtol=1e-5)

# gradients of parts of 4 images, around a mean of 5 numbers of 2, with a variance of 9 for each image
generator = np.random.default_rng(1)
estimates = [gradient_noise(2 + 3 * generator.normal(size=(16, 4, 5)).mean(axis=1), part=4) for _ in range(2000)]
noise, signal = np.mean(estimates, axis=0)
np.testing.assert_allclose(noise, 5 * 3**2, rtol=0.02)
np.testing.assert_allclose(signal, 5 * 2**2, rtol=0.02)  # not 20.7, which the noise of the whole batch adds to
assert keras.ops.is_tensor(warm_up(0.3, 30)(0))
