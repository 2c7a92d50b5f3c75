INPUTS = tf.random.stateless_normal([22, 6], [0, 0])  # 22 is no multiple of 4, and 6 steps are none of 4
LABELS = tf.cast(INPUTS[:, 0] > 0, tf.int64)


def build(steps):
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.Input([6]), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
    many_steps_a_call(net, steps)
    return net


def fitted(steps, **options):
    net = build(steps)
    history = net.fit(INPUTS, LABELS, batch_size=4, shuffle=False, verbose=0, **options).history
    return net, history["loss"][-1]


def agree(net, other, steps=6):
    assert int(net.optimizer.iterations) == int(other.optimizer.iterations) == steps
    for weight, expected in zip(net.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


one, loss = fitted(1)
four, loss_of_four = fitted(4)
agree(four, one)
np.testing.assert_allclose(loss_of_four, loss, rtol=1e-5)

whole = build(1)  # batches alone: those left over wait
loss = whole.fit(INPUTS[:20], LABELS[:20], batch_size=4, shuffle=False, verbose=0).history["loss"][-1]
for by_xla in (False, True):
    looped = build(1)
    logs = epoch_in_one_call(looped, INPUTS, LABELS, 4, by_xla)(tf.range(22))
    agree(looped, whole, steps=5)
    np.testing.assert_allclose(logs["loss"], loss, rtol=1e-5)

for steps, stopped in ((1, 1), (4, 4)):
    stop = StopBelow(math.inf)
    net, _ = fitted(steps, callbacks=[stop])
    assert int(net.optimizer.iterations) == stopped
    assert stop.asked == [stopped - 1]
never = StopBelow(0.0)
fitted(4, callbacks=[never])
assert never.asked == [3, 7]  # there is no step 7: the last call takes the two that are left
