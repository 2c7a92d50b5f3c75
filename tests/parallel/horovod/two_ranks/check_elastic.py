"""What elastic training keeps, gives back and hands to all workers."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparing import assert_same, batches, dataset_of, dense_net, share, weights_of
from horovod.common.exceptions import HostsUpdatedInterrupt

import tfperf.parallel.horovod as hvd
from tfperf.parallel.horovod.collectives import Reduction

K = keras.optimizers
E = hvd.elastic


def everywhere(value: Any) -> list[Any]:
    return hvd.allgather_object(value)


def trained() -> keras.Model:
    """A model that each rank trained alone, so that nothing about it is equal."""
    model = dense_net()
    model.compile(K.Adam(0.05 * (1 + hvd.rank())), "mse")
    model.fit(dataset_of([share(batch) for batch in batches(2 + hvd.rank())]), verbose=0, shuffle=False)
    return model


def values_of(model: keras.Model) -> list[np.ndarray]:
    return [np.array(v.numpy()) for v in [*model.variables, *model.optimizer.variables]]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_sync_gives_all_ranks_those_of_rank_0() -> None:
    model = trained()
    theirs = hvd.broadcast_object(values_of(model))
    before = everywhere(same(values_of(model), theirs))
    state = E.KerasState(model, batch=hvd.rank(), epoch=10 + hvd.rank(), words=["rank", hvd.rank()])
    state.sync()
    assert before == [True, False]
    assert everywhere(same(values_of(model), theirs)) == [True, True]
    assert everywhere([state.batch, state.epoch, state.words]) == [[0, 10, ["rank", 0]]] * 2
    assert everywhere(int(model.optimizer.iterations)) == [2, 2]


def test_restore_goes_back_to_the_commit() -> None:
    model = trained()
    state = E.KerasState(model, batch=1)
    state.sync()
    committed = values_of(model)

    def disturb() -> None:
        state.batch += 1
        for variable in [*model.variables, *model.optimizer.variables]:
            variable.assign(np.asarray(variable.numpy()) + np.ones((), variable.numpy().dtype))

    disturb()
    moved = not same(values_of(model), committed)
    state.restore()
    seen = [moved, same(values_of(model), committed), state.batch == 1]

    disturb()
    state.commit()
    later = values_of(model)
    disturb()
    state.restore()
    seen += [same(values_of(model), later), state.batch == 2, not same(later, committed)]
    assert everywhere(seen) == [[True] * 6] * 2


def test_a_distributed_optimizer_trains_on_after_sync() -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05)), "mse")
    state = E.KerasState(model)
    state.sync()
    model.fit(dataset_of([share(batch) for batch in batches()]), verbose=0, shuffle=False)
    assert_same([weights_of(model)])
    assert model.optimizer.reductions == 4


def test_sync_leaves_local_layers_to_each_rank() -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.Adam(0.05), local_layers=model.layers[0]), "mse")
    model.fit(dataset_of([share(batch) for batch in batches()]), verbose=0, shuffle=False)
    momenta = model.optimizer._momentums
    local, shared = [*model.layers[0].variables, *momenta[:2]], [*model.layers[1].variables, *momenta[2:]]
    for variable in shared:
        variable.assign(variable + hvd.rank())
    state = E.KerasState(model)
    before = [v.numpy() for v in local]
    state.sync()
    assert everywhere(same([v.numpy() for v in local], before)) == [True, True]
    assert_same([[v.numpy() for v in shared]])
    told = everywhere([value.tolist() for value in before])
    assert [mine == theirs for mine, theirs in zip(*told, strict=True)] == [False] * 4


def test_a_predivided_mean_is_that_of_the_ranks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number is read as a step runs, not as it was traced."""
    size = tf.Variable(hvd.size())
    monkeypatch.setattr(Reduction, "size", lambda self: size.read_value())
    reduction = Reduction("predivided", gradient_predivide_factor=2.0)
    reduce = tf.function(lambda value: reduction([value])[0])
    seen = [float(reduce(tf.constant(1.0 + hvd.rank())))]
    size.assign(2 * hvd.size())
    seen.append(float(reduce(tf.constant(1.0 + hvd.rank()))))
    assert everywhere(seen) == [[1.5, 0.75]] * 2


def test_a_state_needs_a_built_model_and_an_optimizer() -> None:
    with pytest.raises(ValueError, match="built model"):
        E.KerasState(keras.Sequential([keras.layers.Dense(1)]), K.SGD())
    with pytest.raises(ValueError, match="expected an optimizer"):
        E.KerasState(dense_net())


@pytest.mark.parametrize("first", ["0", "3"])
def test_callbacks_commit_and_count(first: str) -> None:
    """Epochs are counted as they end, whatever number `fit` begins with."""
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse")
    state = E.KerasState(model, batch=0, epoch=3)
    state.sync()
    commits: list[tuple[int, int]] = []
    commit = state.commit
    state.commit = lambda: commits.append((state.epoch, state.batch)) or commit()
    callbacks = [
        E.UpdateBatchStateCallback(state),
        E.UpdateEpochStateCallback(state),
        E.CommitStateCallback(state, batches_per_commit=2),
    ]
    data = dataset_of([share(batch) for batch in batches(5)])
    begin = int(first)
    model.fit(data, initial_epoch=begin, epochs=begin + 2, verbose=0, shuffle=False, callbacks=callbacks)
    assert everywhere(commits) == [[(3, 2), (3, 4), (4, 0), (4, 2), (4, 4), (5, 0)]] * 2
    assert everywhere([state.batch, state.epoch]) == [[0, 5]] * 2


def commits_of(steps: int, batches_per_commit: int, *, done: int = 0, **options: Any) -> list[tuple[int, int]]:
    """The (epoch, batch) of each commit of one epoch, of whose batches some are done already."""
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse", **options)
    state = E.KerasState(model, batch=done, epoch=0)
    state.sync()
    commits: list[tuple[int, int]] = []
    state.commit = lambda: commits.append((state.epoch, state.batch))
    callbacks = [
        E.UpdateBatchStateCallback(state),
        E.UpdateEpochStateCallback(state),
        E.CommitStateCallback(state, batches_per_commit),
        hvd.callbacks.GuardCallback(),
    ]
    model.fit(dataset_of([share(batch) for batch in batches(steps)]), verbose=0, shuffle=False, callbacks=callbacks)
    return commits


def test_an_epoch_of_which_all_batches_are_done_is_committed_as_done() -> None:
    """`fit` with steps_per_epoch=0, for what is left of it, would train a whole epoch."""
    assert everywhere(commits_of(4, 2)) == [[(0, 2), (1, 0)]] * 2
    assert everywhere(commits_of(3, 1, done=2)) == [[(0, 3), (0, 4), (1, 0)]] * 2


def test_several_steps_in_one_execution_are_counted_each() -> None:
    assert everywhere(commits_of(6, 3, steps_per_execution=2)) == [[(0, 4), (1, 0)]] * 2
    assert everywhere(commits_of(6, 4, done=3, steps_per_execution=2)) == [[(0, 7), (1, 0)]] * 2


def test_ranks_with_other_numbers_of_batches_commit_at_once() -> None:
    """The guard cuts the epoch to 4 batches, which are not the last ones that rank 0 knows of."""
    with pytest.warns(UserWarning, match="rank 1 had 4"):
        commits = commits_of(5 - hvd.rank(), 2)
    assert everywhere(commits) == [[(0, 2), (1, 0)]] * 2


def unknown(steps: int) -> tf.data.Dataset:
    return dataset_of([share(batch) for batch in batches(steps)]).filter(lambda *_: True)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("guard", ["first", "last"])
def test_ranks_with_unknown_numbers_of_batches_commit_at_once(guard: str) -> None:
    """What all have done, but for the last batch of the shorter one."""
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse")
    state = E.KerasState(model, batch=0, epoch=0)
    state.sync()
    commits: list[tuple[int, int]] = []
    state.check_host_updates = lambda: commits.append((state._saved_state["epoch"], state._saved_state["batch"]))
    callbacks = [
        E.UpdateBatchStateCallback(state),
        E.UpdateEpochStateCallback(state),
        E.CommitStateCallback(state),
    ]
    callbacks.insert(0 if guard == "first" else 3, hvd.callbacks.GuardCallback())
    with pytest.warns(UserWarning, match="rank 1 had 4"):
        model.fit(unknown(5 - hvd.rank()), verbose=0, shuffle=False, callbacks=callbacks)
    assert everywhere(commits) == [[(0, 1), (0, 2), (0, 3), (1, 0)]] * 2
    assert_same([weights_of(model)])


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("check", ["1", "2", "3", "4"])
def test_an_epoch_of_unknown_length_goes_on_with_a_batch(check: str) -> None:
    """Hosts come at each of the looks for them in an epoch of 4 batches; what is left is no empty epoch."""
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1)), "mse")
    state = E.KerasState(model, batch=0, epoch=0)
    state.sync()
    looks: list[int] = []

    def look() -> None:
        looks.append(0)
        if len(looks) == int(check):
            raise HostsUpdatedInterrupt(skip_sync=True)

    state.check_host_updates = look
    trained: list[int] = []
    while state.epoch < 1:
        callbacks = [
            E.UpdateBatchStateCallback(state),
            E.UpdateEpochStateCallback(state),
            E.CommitStateCallback(state),
        ]
        try:
            trained.append(4 - state.batch)
            model.fit(unknown(4).skip(state.batch), verbose=0, shuffle=False, callbacks=callbacks)
        except HostsUpdatedInterrupt:
            continue
    assert everywhere(0 not in trained) == [True, True]
    assert everywhere(int(model.optimizer.iterations)) == [4, 4]
    assert_same([weights_of(model)])


def test_gradients_on_their_way_to_an_update_are_not_committed() -> None:
    model = dense_net()
    model.compile(hvd.DistributedOptimizer(K.SGD(0.1, gradient_accumulation_steps=2)), "mse")
    state = E.KerasState(model, batch=0, epoch=0)
    state.sync()
    commits: list[int] = []
    state.commit = lambda: commits.append(state.batch)
    callbacks = [E.UpdateBatchStateCallback(state), E.CommitStateCallback(state)]
    model.fit(dataset_of([share(batch) for batch in batches(6)]), verbose=0, shuffle=False, callbacks=callbacks)
    assert everywhere(commits) == [[2, 4, 0]] * 2


def test_run_restores_after_a_failed_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed exchange goes back to the last commit and calls the function again; other errors leave it."""
    model = trained()
    state = E.KerasState(model, epoch=0)
    calls: list[int] = []

    @E.run
    def train(state: Any) -> str:
        calls.append(state.epoch)
        if len(calls) == 1:
            state.epoch = 1
            state.commit()
            state.epoch = 5
            raise tf.errors.UnknownError(None, None, "HorovodAllreduce: a worker died")
        return "done"

    class Manager:
        """Stands in for the rendezvous of elastic training."""

        def register_listener(self, state: Any) -> None: ...

        def remove_listener(self, state: Any) -> None: ...

        def init(self) -> None: ...

    monkeypatch.setattr("horovod.common.elastic.notification_manager", Manager())
    assert everywhere(train(state)) == ["done"] * 2
    assert everywhere(calls) == [[0, 1]] * 2

    @E.run
    def fails(state: Any) -> None:
        raise tf.errors.InvalidArgumentError(None, None, "shapes")

    with pytest.raises(tf.errors.InvalidArgumentError):
        fails(state)
