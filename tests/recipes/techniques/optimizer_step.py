LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
WORDS, LABELS = tf.constant([[0, 1], [2, 3], [0, 3]]), tf.constant([0, 1, 1])


def build():
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Embedding(5, 3),
        keras.layers.Flatten(),
        keras.layers.Dense(4, "relu"),
        keras.layers.Dense(2),
    ]
    return keras.Sequential([keras.Input([2]), *layers])


def gradients_of(net, words, labels):
    with tf.GradientTape() as tape:
        loss = LOSS(labels, net(words, training=True))
    return tape.gradient(loss, net.trainable_variables)


def trained(make, optimizer):
    """Weights and states after seven steps; the gradient of the embedding is sparse."""
    net = build()
    step = make(net, optimizer, gradients_of)
    for _ in range(7):
        step(WORDS, LABELS)
    return [*net.get_weights(), *(variable.numpy() for variable in optimizer.variables)]


expected = trained(step_in_graph, keras.optimizers.Adam(0.01, 0.8, 0.95, epsilon=1e-3))
assert abs(expected[0] - build().get_weights()[0]).max() > 1e-2
for way in (step_in_graph, update_outside):
    for optimizer in (keras.optimizers.Adam, OneOperationAdam):
        weights = trained(way, optimizer(0.01, 0.8, 0.95, epsilon=1e-3))
        for plain, other in zip(expected, weights, strict=True):
            assert abs(other - plain).max() < 1e-5

net = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
step = step_in_graph(net, OneOperationAdam(), gradients_of)
graph = step.get_concrete_function(tf.ones([3, 4]), LABELS).graph
assert [operation.type for operation in graph.get_operations()].count("ResourceApplyAdam") == 2
