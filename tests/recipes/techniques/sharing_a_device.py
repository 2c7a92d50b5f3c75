share_the_device()
import tensorflow as tf  # noqa: E402

assert tf.config.threading.get_intra_op_parallelism_threads() == 1
core = min(os.sched_getaffinity(0))
x = tf.ones([200, 200])
stay_on(core)
assert all(os.sched_getaffinity(int(thread.name)) == {core} for thread in Path("/proc/self/task").iterdir())
rounds = []
busy, rate = busy_and_rate(lambda: rounds.append(tf.matmul(x, x)), 2 * 200**3, seconds=0.2)
assert rounds
assert 0 < busy <= 1.05  # the two clocks are read one after the other
assert 0 < rate <= len(rounds) * 2 * 200**3 / 0.2
