# Two parameter servers and two workers, as processes: in step they make one device's step, freely they need no wait.
import functools
import multiprocessing
import socket

import keras


def serve(addresses, job, index):
    tf.distribute.Server(addresses, job_name=job, task_index=index).join()


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


if __name__ == "__main__":
    tasks = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    addresses = {job: [free_address(), free_address()] for job in ("ps", "worker")}
    context = multiprocessing.get_context("spawn")
    for task in tasks:
        context.Process(target=serve, args=(addresses, *task), daemon=True).start()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(addresses), rpc_layer="grpc")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))

    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6), keras.layers.Dense(3)])
    first = net.get_weights()
    whole, weights = place(first, 2, split=False), place(first, 2, split=True)
    assert [len(parts) for parts in whole] == [1] * 4
    tasks = [tf.DeviceSpec.from_string(parts[0].device).task for parts in whole]
    assert tasks == [0, 1, 1, 0], tasks  # 24, 6, 18 and 3 weights
    assert [[part.shape[0] for part in parts] for parts in weights] == [[12, 12], [3, 3], [9, 9], [2, 1]]

    random = np.random.default_rng(1)
    images, labels = random.normal(size=(8, 4)).astype("float32"), np.arange(8) % 3
    shares = [(images[worker::2], labels[worker::2]) for worker in range(2)]
    sums = place([0 * value for value in first], 2, split=True)

    def gradients_at(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            logits = (images @ values[0] + values[1]) @ values[2] + values[3]
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return tape.gradient(loss, values)

    step = tf.function(functools.partial(gradient_step, net, weights, sums, 0.1))
    train(coordinator, step, [shares, shares], tf.function(functools.partial(apply_sums, weights, sums)))
    expected = [tf.constant(value) for value in first]
    for _ in range(2):
        expected = [value - 0.1 * slope for value, slope in zip(expected, gradients_at(expected), strict=True)]
    for parts, totals, value in zip(weights, sums, expected, strict=True):
        np.testing.assert_allclose(tf.concat(parts, 0), np.ravel(value), rtol=1e-4, atol=1e-6)
        assert not np.any(np.concatenate(totals)), "the next sum begins at 0"

    rate, free = 1e-3, place(first, 2, split=True)
    train(coordinator, tf.function(functools.partial(gradient_step, net, free, free, rate)), [shares, shares])
    slopes = gradients_at([tf.constant(value) for value in first])
    for parts, value, slope in zip(
        free, first, slopes, strict=True
    ):  # so small a step that the order of them is nothing
        change = np.concatenate(parts) - np.ravel(value)
        np.testing.assert_allclose(change, -2 * rate * np.ravel(slope), rtol=0.05, atol=0.05 * rate)
