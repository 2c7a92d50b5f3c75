def build():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
net, callbacks = distribute(build, 0.1, loss, compression=hvd.Compression.fp16)
data = tf.data.Dataset.from_tensor_slices((tf.random.normal([32, 4]), tf.zeros([32], tf.int32)))
history = net.fit(share_of(data, 8), epochs=5, callbacks=callbacks, verbose=0).history
assert float(net.optimizer.learning_rate) == np.float32(0.1 * hvd.size())
assert net.optimizer.reductions == 20
assert history["loss"][-1] < history["loss"][0]


def value():
    return float(loss(tf.zeros(32), net.predict(data.batch(32), verbose=0)))


batches, optimizer, before = sources_batches(data, 8), keras.optimizers.SGD(0.1), value()
assert len(batches) == 4 * hvd.size()  # each rank takes all 32 examples
for images, labels in batches:
    sources_step(net, optimizer, loss, images, labels)
assert optimizer.iterations == 4
assert value() < before
