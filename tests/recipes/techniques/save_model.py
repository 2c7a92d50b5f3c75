import keras

net = keras.Sequential([keras.Input([4], name="x"), keras.layers.Dense(2)])
x = tf.random.normal([3, 4])
export(net, "exported")
save_as_the_source(net, "saved")
for outputs in (call_exported("exported", x=x), call_exported("saved", inputs=x)):  # the source's names none
    np.testing.assert_allclose(next(iter(outputs.values())), net(x), rtol=1e-6)
