# Two servers and a worker, as processes: what is pushed is summed, and LeNet's stand-in trains through the two calls.
import functools
import multiprocessing
import socket

import numpy as np


def serve(addresses, job, index):
    tf.distribute.Server(addresses, job_name=job, task_index=index).join()


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


if __name__ == "__main__":
    addresses = {"ps": [free_address(), free_address()], "worker": [free_address()]}
    context = multiprocessing.get_context("spawn")
    tasks = [("ps", 0), ("ps", 1), ("worker", 0)]
    for task in tasks:
        context.Process(target=serve, args=(addresses, *task), daemon=True).start()
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(addresses))

    values = {"weight": np.array([1.0, 2.0], "float32"), "bias": np.array([0.5], "float32")}
    store = place(values, servers=2)
    assert [f"/job:ps/replica:0/task:{task}" in store[key].device for task, key in enumerate(values)] == [True, True]
    for value in ([1.0, 1.0], [2.0, 3.0]):
        push(store, "weight", value)
    assert pull(store, "weight").numpy().tolist() == [4.0, 6.0]

    def gradients_of(weights, images, labels):  # of the squared error of images @ weight + bias, summed
        weight, bias = weights
        error = tf.linalg.matvec(images, weight) + bias - labels
        return tf.linalg.matvec(images, error, transpose_a=True), tf.reduce_sum(error, keepdims=True)

    images, labels = np.eye(2, dtype="float32"), np.array([1.0, 0.0], "float32")
    with tf.device("/job:worker/task:0"):
        train_step(
            functools.partial(push, store), functools.partial(pull, store), values, gradients_of, images, labels, 0.1
        )
    errors = np.array([4.0, 6.0]) + 0.5 - labels
    np.testing.assert_allclose(pull(store, "weight"), [4.0, 6.0] - 0.1 * errors, rtol=1e-6)
    np.testing.assert_allclose(pull(store, "bias"), [0.5 - 0.1 * errors.sum()], rtol=1e-6)
