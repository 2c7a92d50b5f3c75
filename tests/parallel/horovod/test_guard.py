"""Guards that need a launch of their own: three ranks, or ranks that end with an error."""

import pytest

THREE_RANKS = """
    import warnings
    import keras, numpy as np, tensorflow as tf
    import tfperf.parallel.horovod as hvd
    from tfperf.errors import HorovodError

    hvd.init()
    rank = hvd.rank()

    def compiled():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
        return model

    def words_of(function, *arguments, **options):
        try:
            function(*arguments, **options)
        except HorovodError as error:
            return str(error)

    # rank 0 is the odd one: most ranks are right
    variables = [keras.Variable(np.full(3, 2.0 if rank == 0 else 1.0)), keras.Variable(np.ones(2))]
    odd = words_of(hvd.check_equal, variables)
    many = words_of(hvd.check_equal, [keras.Variable(float(rank))])

    def data(batches):
        rows = 4 * batches
        dataset = tf.data.Dataset.from_tensor_slices((np.ones((rows, 2), "float32"), np.ones((rows, 3), "float32")))
        return dataset.batch(4).filter(lambda *_: True)

    model = compiled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(data(4 - rank), epochs=2, verbose=0, shuffle=False, callbacks=hvd.callbacks.default())
    told = [str(warning.message) for warning in caught if "as many batches" in str(warning.message)]

    refused = words_of(compiled().fit, data(3 - (rank == 0)), verbose=0, shuffle=False)
    numbers = np.arange(11)
    report(
        odd=odd,
        many=many,
        told=told,
        refused=refused,
        digest=hvd.weights_digest(model),
        steps=int(model.optimizer.iterations),
        share=hvd.shard(numbers).tolist(),
        unknown=[int(x) for x in hvd.shard(tf.data.Dataset.from_tensor_slices(numbers).filter(lambda x: x >= 0))],
    )
"""

SPARSE = """
    import keras, numpy as np, tensorflow as tf
    import tfperf.parallel.horovod as hvd

    hvd.init()
    model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    batch = np.ones((4, 2), "int32"), np.ones((4, 2, 3), "float32")
    data = tf.data.Dataset.from_tensors(batch).repeat(4 - hvd.rank()).filter(lambda *_: True)
    model.fit(data, verbose=0, shuffle=False, callbacks=hvd.callbacks.default())
    report(steps=int(model.optimizer.iterations))
"""

WAITS_IN_VAIN = """
    import threading
    import keras, numpy as np
    import tfperf.parallel.horovod as hvd

    hvd.init()

    class Wait(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if hvd.rank() == 1 and batch == 1:
                threading.Event().wait()

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(np.ones((16, 2)), np.ones((16, 3)), batch_size=4, verbose=0, callbacks=[Wait()])
"""


def test_three_ranks(ranks) -> None:
    """Here most ranks can be right against rank 0, and several be short."""
    results = ranks(THREE_RANKS, np=3, deadline=200).of_each_rank()
    for result in results:
        assert "expected equal weights on all 3 ranks, rank 0 differs in" in result["odd"]
        assert "ranks 1, 2 differ" in result["many"]
        assert len(result["told"]) == 1
        assert "rank 2 had 2, others up to 4" in result["told"][0]
        assert "expected 3 steps on every rank, rank 0 took 2" in result["refused"]
        assert result["steps"] == 4 + 2
    assert len({result["digest"] for result in results}) == 1
    assert [result["share"] for result in results] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert [result["unknown"] for result in results] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_unequal_batches_with_sparse_gradients_do_not_hang(ranks) -> None:
    """Horovod cannot gather rows of a rank that has none left. The launch ends; sparse_as_dense=True would help."""
    launched = ranks(SPARSE, deadline=150)
    assert launched.returncode not in (None, 0), launched.output
    assert launched.results == (None, None)
    assert "Error" in launched.output


@pytest.mark.parametrize("launcher", ["horovodrun", "tfperf launch"])
def test_a_rank_that_is_waited_for_in_vain_is_named(ranks, launcher: str) -> None:
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"}
    launched = ranks(WAITS_IN_VAIN, deadline=150, env=limits, launcher=launcher)
    assert launched.returncode not in (None, 0), launched.output
    assert "rank 1" in launched.output
