def build():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])


net, loss = build(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
callbacks = distribute(net, 0.1, loss)
data = tf.data.Dataset.from_tensor_slices((tf.random.normal([32, 4]), tf.zeros([32], tf.int32)))
net.fit(share_of(data, 8), callbacks=callbacks, verbose=0)
assert float(net.optimizer.learning_rate) == np.float32(0.1 * hvd.size())
apart = build()
forget_to_start_equal(apart, 0.1, loss)
apart.fit(data.batch(8), verbose=0)
