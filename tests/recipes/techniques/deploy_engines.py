import importlib.util

import keras

net = keras.Sequential([keras.Input([4], name="x"), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
x = np.random.default_rng(0).standard_normal((1, 4)).astype(np.float32)
net.export("exported", verbose=False)
np.testing.assert_allclose(run_saved_model("exported", x), net(x), rtol=1e-4, atol=1e-6)
for package, call in (
    ("ai_edge_litert", lambda: run_litert("exported", x)),
    ("onnxruntime", lambda: run_onnx(net, x)),
    ("openvino", lambda: run_openvino("exported", x)),
):
    if importlib.util.find_spec(package):
        np.testing.assert_allclose(call(), net(x), rtol=1e-4, atol=1e-6)
