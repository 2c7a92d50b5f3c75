net = in_bfloat16(
    lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(2, dtype="float32")])
)
assert net.layers[0].compute_dtype == "bfloat16"
assert net.layers[0].kernel.dtype == net.layers[1].compute_dtype == "float32"
assert net(tf.ones([1, 4])).dtype == tf.float32

KINDS = {keras.layers.BatchNormalization: FusedNorm, keras.layers.Conv2D: SwappedConv}
X = tf.random.stateless_normal([6, 9, 10, 3], [0, 0])
WEIGHTS = tf.random.stateless_normal([6, 2], [1, 0])  # of the outputs: the sum of a normalized batch has no gradient


def step(net):
    """Outputs, gradients and moving statistics of a step in training, and the outputs of inference after it."""
    with tf.GradientTape() as tape:
        tape.watch(X)
        outputs = net(X, training=True)
        loss = tf.reduce_sum(outputs * WEIGHTS)
    return [outputs, *tape.gradient(loss, [X, *net.trainable_variables]), *net.non_trainable_variables, net(X)]


for stride, padding, width in (
    (1, "same", 3),
    (2, "same", 3),
    (2, "same", 1),
    (1, "valid", 3),
    (2, "valid", 3),
    (3, "same", 2),
):
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(4, width, stride, padding),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.ReLU(),
        keras.layers.Conv2D(5, (1, 2), 1, padding),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2),
    ]
    net = keras.Sequential([keras.Input([9, 10, 3]), *layers])
    faster = exchange(net, KINDS)
    assert sum(type(layer) in KINDS.values() for layer in faster.layers) == 3
    for plain, fast in zip(step(net), tf.function(lambda faster=faster: step(faster))(), strict=True):
        np_plain, np_fast = (keras.ops.convert_to_numpy(one) for one in (plain, fast))
        assert abs(np_fast - np_plain).max() < 1e-4 * max(1, abs(np_plain).max())

kernel = tf.random.stateless_normal([3, 3, 3, 4], [2, 0])
with tf.GradientTape() as tape:
    tape.watch(kernel)
    outputs = tf.nn.conv2d(X, kernel, 2, "SAME")
upstream = tf.random.stateless_normal(outputs.shape, [3, 0])
tf.debugging.assert_near(
    kernel_gradient(X, upstream, (3, 3), (2, 2)), tape.gradient(outputs, kernel, upstream), rtol=1e-4, atol=1e-4
)
