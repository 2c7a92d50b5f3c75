generator = np.random.default_rng(0)
x, kernel, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ([4, 6], [6, 7], [7]))
second, its_bias = (generator.standard_normal(shape).astype(np.float32) for shape in ([7, 3], [3]))
for devices in (["CPU:0"], ["CPU:0"] * 2, ["CPU:0"] * 3):
    parts = by_output_channels(x, kernel, bias, devices)
    assert len(parts) == len(devices)
    outputs = by_input_channels(parts, second, its_bias, devices)
    np.testing.assert_allclose(outputs, np.maximum(x @ kernel + bias, 0) @ second + its_bias, atol=1e-4)
assert bytes_of_a_pair(weights=100, activations=10, batch=5, devices=2) == {"by data": 800, "by channels": 400}
