net = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
inputs, labels = (tf.random.normal([8, 4]),), tf.constant([0, 1] * 4)
whole, parts = accumulate(net, loss_of, 1)(inputs, labels), accumulate(net, loss_of, 4)(inputs, labels)
for one, other, wrong in zip(whole, parts, forget_to_divide(whole, 4), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(4 * one, wrong)
before = net.get_weights()
net.compile(accumulate_in_keras(keras.optimizers.SGD(1.0), 4), loss_of)
net.fit(*inputs, labels, batch_size=2, shuffle=False, verbose=0)
for old, new, gradient in zip(before, net.get_weights(), whole, strict=True):
    np.testing.assert_allclose(old - new, gradient, rtol=1e-4, atol=1e-6)
