x = tf.random.normal([1000])
tf.debugging.assert_near(fused(chain(8))(x), chain(8)(x))
kernels = kernels_of(chain(8), x)
assert len(kernels) == 1, kernels
