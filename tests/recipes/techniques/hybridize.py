net = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
x = tf.random.normal([5, 4])
graph, xla, any_batch = as_graph(net), as_xla(net), as_graph_for_any_batch(net, x)
for function in (graph, xla, any_batch, as_one_trace(net, x)):
    tf.debugging.assert_near(function(x), net(x))
for size in (1, 2, 3):
    any_batch(tf.random.normal([size, 4]))
assert any_batch.experimental_get_tracing_count() == 1
assert "HloModule" in xla.experimental_get_compiler_ir(x)(stage="optimized_hlo")
