"""KeyValueStore on TensorFlow's servers: sums, who waits for whom, where values lie, and what is refused.

One cluster serves all tests: what happens on it comes home as plain data.
"""

import itertools
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest

from tfperf.errors import TfperfError
from tfperf.parallel import KeyValueStore, LocalCluster, in_private_network

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the processes cannot import it

WORKERS, SERVERS = 2, 2
SHAPES = {"a": (3, 5), "b": (7,), "c": (), "d": (2, 2, 3)}
RNG = np.random.default_rng(7)
FIRST = {key: RNG.normal(size=shape).astype("float32") for key, shape in SHAPES.items()}
PUSHED = [{key: RNG.normal(size=shape).astype("float32") for key, shape in SHAPES.items()} for _ in range(WORKERS)]
NUMBERS = RNG.normal(size=(3, 1000)).astype("float32") * np.array([[1], [1e3], [1e-3]], "float32")


def use(first, pushed, numbers):
    """Use stores of all kinds; returns what came of it."""
    import tensorflow as tf

    found = {}
    with LocalCluster(WORKERS, SERVERS) as cluster:

        def round_of(store):
            def work(worker):
                for key in first:
                    store.push(key, pushed[worker][key])
                pulled = [store.pull(key) for key in first]
                return [value.numpy() for value in pulled], {value.device for value in pulled}

            return store.run(work)

        for split in (False, True):
            store = KeyValueStore(cluster, split=split)
            for key, value in first.items():
                store.create(key, value)
            found["held", split] = store.bytes_held()
            found["rounds", split] = [round_of(store), round_of(store)]
            found["from outside", split] = [store.pull(key).numpy() for key in first]

        asynchronous = KeyValueStore(cluster, synchronous=False)
        for order in itertools.permutations(range(len(numbers))):
            asynchronous.create(str(order), np.zeros_like(numbers[0]))
            for number in order:
                asynchronous.push(str(order), numbers[number])
            found[order] = asynchronous.pull(str(order)).numpy()

        for name, synchronous in {"waits": True, "does not wait": False}.items():
            store, other_has_pulled = KeyValueStore(cluster, synchronous=synchronous), threading.Event()
            store.create("total", 0.0)

            def late(worker, store=store, other_has_pulled=other_has_pulled, wait=not synchronous):
                if worker and wait:
                    other_has_pulled.wait(30)
                store.push("total", worker + 1.0)
                total = float(store.pull("total"))
                other_has_pulled.set()
                return total

            found[name] = store.run(late)

        store = KeyValueStore(cluster, deadline=0.2)
        store.create("total", tf.zeros([2]))

        def wrong(action):
            with pytest.raises(TfperfError) as raised:
                action()
            return str(raised.value)

        found["one did not push"] = wrong(
            lambda: store.run(lambda worker: worker or (store.push("total", [1.0, 1.0]), store.pull("total")))
        )
        hasty = KeyValueStore(cluster, deadline=0.2)
        hasty.create("total", 0.0)
        found["one pushed twice"] = wrong(
            lambda: hasty.run(lambda worker: worker or [hasty.push("total", 1.0) for _ in range(2)])
        )
        found["other shape"] = wrong(lambda: store.push("total", [1.0]))
        found["no such key"] = wrong(lambda: store.pull("other"))
        found["twice"] = wrong(lambda: store.create("total", 1.0))
        found["by nobody"] = wrong(lambda: store.push("total", [1.0, 1.0]))

        patient = KeyValueStore(cluster, deadline=600)
        patient.create("total", 0.0)

        def fail(worker):
            patient.push("total", 1.0) if worker else 1 / 0
            return patient.pull("total")

        with pytest.raises(ZeroDivisionError):
            patient.run(fail)

        def push_late(worker):
            if worker == 0:
                time.sleep(0.2)  # the other one waits for this one, and does not give up
            patient.push("total", worker + 1.0)
            return float(patient.pull("total"))

        found["after a failure"] = patient.run(push_late)
    return found


@pytest.fixture(scope="module")
def found():
    return in_private_network(use, FIRST, PUSHED, NUMBERS)


@pytest.mark.parametrize("split", [False, True])
def test_what_is_pulled_is_numpys_sum(found, split):
    for number, on_workers in enumerate(found["rounds", split], 1):
        expected = [FIRST[key] + number * (PUSHED[0][key] + PUSHED[1][key]) for key in FIRST]
        for worker, (values, devices) in enumerate(on_workers):
            assert all(f"/job:worker/replica:0/task:{worker}" in device for device in devices)
            for value, right in zip(values, expected, strict=True):
                np.testing.assert_allclose(value, right, rtol=1e-6, atol=1e-6)
        for of_one, of_other in zip(on_workers[0][0], on_workers[1][0], strict=True):
            np.testing.assert_array_equal(of_one, of_other)
    for value, last in zip(found["from outside", split], found["rounds", split][-1][0][0], strict=True):
        np.testing.assert_array_equal(value, last)


def test_whole_values_go_where_fewest_bytes_are_and_parts_everywhere(found):
    sizes = [4 * int(np.prod(shape)) for shape in SHAPES.values()]  # 60, 28, 4, 48 bytes
    assert found["held", False] == [sizes[0], sizes[1] + sizes[2] + sizes[3]]
    assert found["held", True] == [
        sum(4 * ((size // 4 + server) // SERVERS) for size in sizes) for server in range(SERVERS)
    ]


def test_the_order_of_pushes_changes_the_last_bits_only(found):
    orders = list(itertools.permutations(range(3)))
    for order in orders:
        total = np.zeros_like(NUMBERS[0])
        for number in order:
            total += NUMBERS[number]
        np.testing.assert_array_equal(found[order], total)
    sums = np.stack([found[order] for order in orders])
    assert len(np.unique(sums, axis=0)) > 1, "some order gives other bits"
    scale = np.abs(NUMBERS).max(0)
    assert (np.ptp(sums, 0) <= 4 * np.finfo("float32").eps * scale).all()


def test_a_synchronous_pull_waits_for_all_and_an_asynchronous_one_does_not(found):
    assert found["waits"] == [3.0, 3.0]
    assert found["does not wait"] == [1.0, 3.0]


def test_a_worker_that_does_not_push_is_named(found):
    for name in ("one did not push", "one pushed twice"):  # a second push waits for the end of the first round
        assert found[name] == "expected every worker to push 'total' within 0.2 s; worker 1 did not"


def test_a_run_after_one_that_failed_begins_a_round_of_its_own(found):
    assert found["after a failure"] == [3.0, 3.0]


def test_bad_input_is_one_line(found):
    assert found["other shape"] == "expected shape (2,) for key 'total'. Received: (1,)"
    assert found["no such key"] == "expected one of the keys total. Received: 'other'"
    assert found["twice"] == "expected a new key. Received: 'total', which the store holds"
    assert found["by nobody"].startswith("expected a push of 'total' by a worker, in a function that `run` runs.")
