tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
)
devices = ["CPU:0", "CPU:1"]
generator = np.random.default_rng(0)
params = [generator.normal(size=(6, 3)).astype(np.float32), np.zeros(3, np.float32)]
batch = tf.constant(generator.normal(size=(8, 6)), tf.float32), tf.constant(np.arange(8) % 3)


def net(inputs, params):
    return inputs @ params[0] + params[1]


def train(devices, reduce, steps=10):
    replicas = [get_params(params, device) for device in devices]
    assert [weights[0].device[-5:] for weights, _ in replicas] == devices
    for _ in range(steps):
        train_batch(net, replicas, devices, batch, 0.5, reduce)
    return [[weight.numpy() for weight in weights] for weights, _ in replicas]


shards = split_batch(batch, devices)
assert [shard[0].device[-5:] for shard in shards] == devices
for whole, *parts in zip(batch, *shards, strict=True):
    np.testing.assert_array_equal(np.concatenate(parts), whole)

[alone], right, wrong = (
    train(places, reduce)
    for places, reduce in (
        (devices[:1], allreduce),
        (devices, allreduce),
        (devices, sources_allreduce),
    )
)
for weights in right:  # both replicas
    for weight, expected, first in zip(weights, alone, params, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
        assert np.abs(expected - first).max() > 0.01
assert np.abs(wrong[0][0] - wrong[1][0]).max() > 0.1

held = [tf.Variable([1.0, 1.0]), tf.Variable([2.0, 2.0])]
data = list(held)
sources_allreduce(data)
assert [one.numpy()[0] for one in data] == [3, 3]  # what the source's test prints
assert [one.numpy()[0] for one in held] == [3, 2]  # what devices update with
