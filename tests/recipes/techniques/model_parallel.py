layers = [keras.layers.Dense(4, "relu", bias_initializer="normal") for _ in range(3)]
first = keras.Input([4])
stages = [stage_on("CPU:0", [first, layers[0]]), stage_on("CPU:0", [first, *layers[1:]])]
x = tf.random.normal([6, 4])
for micro_batches in (1, 2, 3):
    np.testing.assert_allclose(pipelined(stages, x, micro_batches), layers[2](layers[1](layers[0](x))), atol=1e-6)
assert expected_bubble(2, 1) == 0.5
assert expected_bubble(4, 3) == 0.5
