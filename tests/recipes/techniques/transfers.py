source, target, moves = bytes(range(100)), bytearray(100), []


def move(begin, end):
    target[begin:end] = source[begin:end]
    moves.append(end - begin)


in_pieces(move, 100, 30)
assert bytes(target) == source
assert moves == [30, 30, 30, 10]
target[:] = bytes(100)
at_once(move, 100)
assert bytes(target) == source
assert moves[4:] == [100]

sizes = [2**power for power in range(10, 26)]
noise = np.random.default_rng(0).normal(1, 0.01, len(sizes))
start, bandwidth = fit(sizes, [(5e-6 + size / 32e9) * factor for size, factor in zip(sizes, noise, strict=True)])
assert abs(start / 5e-6 - 1) < 0.02  # absolute errors would leave it to the noise of the largest size
assert abs(bandwidth / 32e9 - 1) < 0.02
