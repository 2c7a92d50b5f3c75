"""The ring: its sums, the bytes that its sockets take, and what happens where a rank is missing, dead or a stranger."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfperf.errors import TfperfError
from tfperf.parallel import Ring, RingMember
from tfperf.parallel.private_network import LOOPBACK
from tfperf.parallel.ring import SO_MAX_PACING_RATE, TOKEN_BYTES

DEADLINE = 60
TOKEN = b"t" * TOKEN_BYTES
WAYS = ("allreduce", "gather_to_one")


def counted(member, way, array):
    """The sum on a rank, the bytes and messages that it took there, and the array afterwards."""
    before = member.bytes_sent, member.messages_sent
    total = getattr(member, way)(array)
    return total, member.bytes_sent - before[0], member.messages_sent - before[1], array


def own_number(member):
    return os.getpid()


def pacing(member):
    peers = [member._next, member._before, *member._gathering]
    rates = [peer.line.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8) for peer in peers]
    return [int.from_bytes(rate, sys.byteorder) for rate in rates]


def fails_on_rank_1(member):
    if member.rank == 1:
        return 1 / 0
    return member.allreduce(np.ones(8))


def is_killed_on_rank_2(member):
    if member.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return member.allreduce(np.ones(8))


def sleeps_on_rank_1(member):
    if member.rank == 1:
        time.sleep(600)
    return member.allreduce(np.ones(8))


def are_gone(numbers):
    _, alive = psutil.wait_procs([psutil.Process(one) for one in numbers if psutil.pid_exists(one)], timeout=DEADLINE)
    return not alive


@pytest.fixture(scope="module")
def rings():
    """A ring of each size from 1 to 4."""
    with contextlib.ExitStack() as stack:
        yield {size: stack.enter_context(Ring(size)) for size in (1, 2, 3, 4)}


@contextlib.contextmanager
def members(size, patience=DEADLINE, token=TOKEN):
    """The members of a ring, in this process; none is connected."""
    made = [RingMember(rank, LOOPBACK, size, token, patience) for rank in range(size)]
    try:
        yield made
    finally:
        for member in made:
            member.close()


def at_once(*functions):
    """Call functions in threads of their own; the error of each, or None."""
    errors = [None] * len(functions)

    def call(index, function):
        try:
            function()
        except TfperfError as error:
            errors[index] = str(error)

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    return errors


def connect(all_members):
    addresses = [member.address for member in all_members]
    return at_once(*(lambda member=member: member.connect(addresses) for member in all_members))


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from((1, 2, 3, 4)),
    way=st.sampled_from(WAYS),
    dtype=st.sampled_from((np.float32, np.float64, np.int64)),
    shape=st.lists(st.integers(0, 50), max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_sum_is_right_and_the_same_on_all_ranks(rings, size, way, dtype, shape, seed):
    numbers = np.random.default_rng(seed).integers(-1000, 1000, (size, *shape)) / (1 if dtype is np.int64 else 7)
    arrays = numbers.astype(dtype)  # (size, *shape)
    outcomes = rings[size].run(counted, [(way, array) for array in arrays])
    for array, (total, _, _, afterwards) in zip(arrays, outcomes, strict=True):
        assert total.dtype == dtype
        assert total.shape == tuple(shape)
        np.testing.assert_allclose(total, arrays.sum(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-3)
        assert total.tobytes() == outcomes[0][0].tobytes()
        assert afterwards.tobytes() == array.tobytes()
    assert sum(sent for _, sent, _, _ in outcomes) == 2 * (size - 1) * arrays[0].nbytes


def added_in_place(member, array):
    total = member.allreduce(array, in_place=True)
    return total, array


def test_a_sum_can_take_the_place_of_the_array(rings):
    arrays = np.arange(24.0).reshape(3, 2, 4)  # (ranks, 2, 4)
    for total, array in rings[3].run(added_in_place, [(array,) for array in arrays]):
        np.testing.assert_array_equal(total, arrays.sum(axis=0))
        np.testing.assert_array_equal(array, total)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("length", [250_001, 2_000_003])  # the second is more than a socket takes at once
def test_each_rank_of_a_ring_sends_2_n_minus_1_nths(rings, size, length):
    array = np.ones(length, np.float32)
    for total, sent, messages, _ in rings[size].run(counted, [("allreduce", array)] * size):
        assert (total == size).all()
        assert sent == pytest.approx(2 * (size - 1) / size * array.nbytes, rel=0.01)
        assert messages == 2 * (size - 1)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_gathering_lets_rank_0_send_everything(rings, size):
    array = np.ones(1000)
    outcomes = rings[size].run(counted, [("gather_to_one", array)] * size)
    assert [sent for _, sent, _, _ in outcomes] == [(size - 1) * array.nbytes] + [array.nbytes] * (size - 1)
    assert [messages for _, _, messages, _ in outcomes] == [size - 1] + [1] * (size - 1)


def test_a_ring_of_one_sends_nothing(rings):
    ((total, sent, messages, _),) = rings[1].run(counted, [("allreduce", np.arange(5))])
    assert (total.tolist(), sent, messages) == ([0, 1, 2, 3, 4], 0, 0)


def test_methods_are_called_by_their_names(rings):
    assert [total.tolist() for total in rings[2].run(RingMember.allreduce, [(np.ones(2),)] * 2)] == [[2.0, 2.0]] * 2


def test_connections_are_slowed_down_on_all_ranks():
    with Ring(3, bandwidth=10**11) as ring:
        assert ring.run(pacing, [()] * 3) == [[10**11] * 4, [10**11] * 3, [10**11] * 3]
        assert ring.run(RingMember.allreduce, [(np.ones(2),)] * 3)[0].tolist() == [3.0, 3.0]


def test_only_loopback_listens_and_only_until_all_have_come():
    with members(2) as both:
        assert {member._server.getsockname()[0] for member in both} == {"127.0.0.1"}
        assert connect(both) == [None, None]
        for member in both:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(member.address, 5)


def test_strangers_are_refused():
    with members(3) as three, contextlib.ExitStack() as stack:
        greetings = [
            b"s" * TOKEN_BYTES + b"\0\0\0\0\2",  # a wrong token
            TOKEN[:-1] + b"s" + b"\0\0\0\0\2",
            TOKEN + b"\0\0\0\0\1",  # a rank that is not expected at rank 0 for the ring
            TOKEN + b"\7\0\0\0\1",  # an unknown purpose
            TOKEN,  # too short
            b"GET / HTTP/1.1\r\n\r\n\r\n\r\n",
            b"",  # waits
        ]
        strangers = [socket.create_connection(three[0].address, DEADLINE) for _ in greetings]
        for stranger, greeting in zip(strangers, greetings, strict=True):
            stack.enter_context(stranger)
            stranger.sendall(greeting)
        assert connect(three) == [None] * 3
        totals = []
        assert at_once(*(lambda m=m: totals.append(m.allreduce(np.ones(4)).tolist()) for m in three)) == [None] * 3
        assert totals == [[3.0] * 4] * 3
        for stranger in strangers:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""


def test_a_rank_that_never_comes_is_named():
    with members(3, patience=0.3) as three:
        addresses = [member.address for member in three]
        errors = at_once(lambda: three[0].connect(addresses), lambda: three[1].connect(addresses))
        assert errors[0] == "rank 0 expected rank 2 to take part; it has not come within 0.3 s"


def test_a_rank_that_has_ended_before_it_came_is_named():
    with members(2, patience=5) as (first, second):
        second.close()
        with pytest.raises(TfperfError, match="rank 0 expected rank 1 to take part; it has ended"):
            first.connect([first.address, second.address])


@pytest.mark.parametrize("way", WAYS)
def test_a_neighbour_that_dies_is_named_by_those_who_wait(way):
    with members(3) as three:
        assert connect(three) == [None] * 3
        three[1].close()
        for member in (three[0], three[2])[: 2 if way == "allreduce" else 1]:
            with pytest.raises(TfperfError, match=rf"rank {member.rank} expected rank 1 to take part; it has ended"):
                getattr(member, way)(np.ones(10**7))
            assert member.has_lost_neighbour


@pytest.mark.parametrize(("length", "named"), [(4, "1"), (10**7, "1")])
def test_a_neighbour_that_does_nothing_is_named(length, named):
    with members(2, patience=0.3) as both:
        assert connect(both) == [None, None]
        with pytest.raises(TfperfError, match=rf"rank 0 expected rank {named} .* it has done nothing for 0\.3 s"):
            both[0].gather_to_one(np.ones(length))


def test_the_rank_whose_function_fails_is_named_and_all_end(monkeypatch):
    monkeypatch.setattr("tfperf.parallel.ring.PATIENCE", 10.0)  # the others are not left to wait for it
    with Ring(3) as ring:
        numbers = ring.run(own_number, [()] * 3)
        with pytest.raises(TfperfError, match="fails_on_rank_1 has failed on rank 1: ZeroDivisionError") as told:
            ring.run(fails_on_rank_1, [()] * 3)
        assert "\n" not in str(told.value)
        assert are_gone(numbers)


def test_the_rank_that_is_killed_is_named_and_all_end():
    with Ring(4) as ring:
        numbers = ring.run(own_number, [()] * 4)
        with pytest.raises(TfperfError, match="rank 2 has ended"):
            ring.run(is_killed_on_rank_2, [()] * 4)
        assert are_gone(numbers)


def test_the_rank_that_does_not_take_part_is_named_and_all_end():
    with Ring(2, deadline=8) as ring:
        numbers = ring.run(own_number, [()] * 2)
        with pytest.raises(TfperfError, match=r"at work still: rank 1$"):
            ring.run(sleeps_on_rank_1, [()] * 2)
        assert are_gone(numbers)


def test_wrong_arguments_are_refused(rings):
    with pytest.raises(ValueError, match=r"expected 2 calls, one a rank\. Received: 1"):
        rings[2].run(own_number, [()])
    with pytest.raises(ValueError, match="expected at least 1 process"):
        Ring(0)
    for bandwidth in (0, -1, 2**63):
        with pytest.raises(ValueError, match=f"Received: {bandwidth}"):
            Ring(2, bandwidth)


def test_it_loads_no_tensorflow():
    code = "import sys, tfperf.parallel.ring; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
