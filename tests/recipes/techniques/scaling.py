latency, bandwidth, size = 1e-4, 1e8, 4e6  # seconds, bytes/s, bytes
rings = [ring_seconds(size, n, latency, bandwidth) for n in (1, 2, 4, 1000)]
np.testing.assert_allclose(rings, [0, 2e-4 + 0.04, 6e-4 + 0.06, 0.1998 + 0.07992])  # bytes stay below 2 * size
few = [ring_seconds(1e3, n, latency, bandwidth) for n in (2, 1000)]
assert few[1] > 100 * few[0]  # few bytes: 2 (n - 1) times the latency

assert step_seconds(0.1, 0.2, 0.15, overlap=True) == step_seconds(0.1, 0.2, 0.0, overlap=False)  # wholly hidden
np.testing.assert_allclose(step_seconds(0.1, 0.2, 0.5, overlap=True), 0.6)  # not 0.5: nothing to send before 0.1 s
np.testing.assert_allclose(step_seconds(0.1, 0.2, 0.5, overlap=False), 0.8)

assert knee([10, 20, 28, 34, 38, 41]) == 4  # the fourth brings 6, the fifth 4, less than half of 10
assert knee([10, 14, 21, 22]) == 3  # a slow start does not end it
