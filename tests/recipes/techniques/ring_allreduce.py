import math

arrays = np.random.default_rng(0).standard_normal((4, 10))
nodes = [np.array_split(array.copy(), 4) for array in arrays]  # blocks of 3, 3, 2 and 2 numbers
ring_allreduce(nodes)
for blocks in nodes:
    assert np.allclose(np.concatenate(blocks), arrays.sum(axis=0))
    assert np.array_equal(np.concatenate(blocks), np.concatenate(nodes[0]))


def message_seconds(size):
    return 1e-3 + size / 1e6


assert math.isclose(ring_seconds(4, 1e6, message_seconds), 6 * (1e-3 + 0.25))
assert math.isclose(gather_seconds(4, 1e6, message_seconds), 6 * (1e-3 + 1.0))
assert ring_seconds(1000, 1e6, message_seconds) > 1.9 > ring_seconds(5, 1e6, message_seconds) > 1.6
