"""The kernels that TensorFlow really runs, how long each takes, and how long it should."""
