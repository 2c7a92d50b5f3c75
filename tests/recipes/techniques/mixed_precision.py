net = half_precision(
    lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(3, "relu"), right_end(2)]), "mixed_float16"
)
assert net.layers[0].compute_dtype == "float16"
assert net.layers[0].kernel.dtype == "float32"
assert net(tf.ones([1, 4])).dtype == tf.float32
assert half_precision(lambda: wrong_end(2), "mixed_float16")(tf.ones([1, 4])).dtype == tf.float16

optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1e-3), initial_scale=2.0**10)
optimizer.build(net.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
before = np.concatenate([np.ravel(weight) for weight in net.get_weights()])
scaled_step(net, optimizer, loss_of, (tf.ones([8, 4]),), tf.zeros([8], tf.int32))
moved = np.concatenate([np.ravel(weight) for weight in net.get_weights()]) - before
np.testing.assert_allclose(np.linalg.norm(moved), 0.1 * 1e-3, rtol=1e-2)  # clipped after the scale was taken out
