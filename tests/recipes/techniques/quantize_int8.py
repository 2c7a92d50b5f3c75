import importlib.util

weights = np.random.default_rng(0).standard_normal((8, 4))
assert len(np.unique(rounded(weights, 3)[:, 0])) <= 7
np.testing.assert_allclose(rounded(weights, 16), weights, atol=1e-3)

net = keras.Sequential([keras.Input([8], name="x"), keras.layers.Dense(512, "relu"), keras.layers.Dense(4)])
net.export("net", verbose=False)
plain = tf.lite.TFLiteConverter.from_saved_model("net").convert()
examples = {"x": np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)}
for model in (quantize_in_litert("net"), quantize_in_litert("net", examples)):
    assert len(model) < 0.6 * len(plain)
if importlib.util.find_spec("onnxruntime"):
    import tf2onnx

    spec = [tf.TensorSpec([None, 8], tf.float32, name="x")]
    tf2onnx.convert.from_function(tf.function(net, input_signature=spec), spec, output_path="float32.onnx")
    quantize_in_onnx("float32.onnx", "int8.onnx")
    assert Path("int8.onnx").stat().st_size < 0.6 * Path("float32.onnx").stat().st_size
x = tf.ones([2, 8])
before = net(x)
np.testing.assert_allclose(quantize_in_keras(net)(x), before, atol=0.1)
assert net.layers[0].kernel.dtype == "int8"
