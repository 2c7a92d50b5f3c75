generator = np.random.default_rng(0)
a, b = (tf.constant(generator.integers(-127, 128, shape), tf.int8) for shape in ((3, 5), (5, 2)))
exact = np.matmul(a.numpy().astype(int), b.numpy().astype(int))
for compiled in (False, True):
    product = product_in("int8", compiled)(a, b)
    assert product.dtype == tf.int32  # the sums need more than 8 bits
    np.testing.assert_array_equal(product, exact)
half = product_in("bfloat16")(tf.cast(a, tf.float32), tf.cast(b, tf.float32))
assert half.dtype == tf.bfloat16
np.testing.assert_allclose(tf.cast(half, tf.float32), exact, rtol=1e-2, atol=64)

shapes = []
multiply = padded(lambda a, b: shapes.extend([a.shape, b.shape]) or tf.matmul(a, b, output_type=tf.int32), block=4)
np.testing.assert_array_equal(multiply(a, b), exact)
assert shapes == [(4, 8), (8, 4)]
multiply(tf.zeros([4, 8], tf.int8), tf.zeros([8, 4], tf.int8))
assert shapes[2:] == shapes[:2]  # what is aligned stays as it is

allow_tf32(False)
assert not tf.config.experimental.tensor_float_32_execution_enabled()
allow_tf32(True)
assert tf.config.experimental.tensor_float_32_execution_enabled()
assert operations_per_second(3, 5, 2, seconds=0.5) == 120
