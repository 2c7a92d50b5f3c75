numbers = tf.Variable([-1.0, 0.0, 3.0])
factors = np.float32([[0.5, 0.25], [0.5, 0.75]])  # each multiply-add moves a number towards 1
change = multiply_adds(4, chains=2)  # two steps in each chain, then the mean of both
change(numbers, factors)
np.testing.assert_allclose(numbers, 1 + (0.5**2 + 0.25**2) / 2 * (np.array([-1.0, 0.0, 3.0]) - 1), rtol=1e-6)
program = change.experimental_get_compiler_ir(numbers, factors)(stage="optimized_hlo")
assert program[program.index("ENTRY") :].count(" fusion(") == 1, program

roofs = {"peak": 1e11, "bandwidth": 1e10}
product = bound_by(seconds=0.03, tiny_seconds=1e-5, flops=2e9, moved=1e7, **roofs)
total = bound_by(seconds=0.03, tiny_seconds=1e-5, flops=2e7, moved=2e8, **roofs)
calls = bound_by(seconds=0.03, tiny_seconds=0.02, flops=2e9, moved=1e7, **roofs)
assert (product, total, calls) == ("compute", "bandwidth", "overhead")

half = {"compute": 0.5}
assert confirms("compute", half, 0.55)
assert confirms("bandwidth", half, 1.05)
assert not confirms("compute", half, 1.0)
assert not confirms("overhead", half, 0.5)
assert confirms("overhead", {"overhead": 2.0}, 1.9)
