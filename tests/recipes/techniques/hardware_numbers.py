import numba

numbers, order = np.arange(1000), np.random.default_rng(0).permutation(1000)
assert gather(numbers, order) == numbers.sum()
for loop in (keep_if, numba.njit(keep_if)):
    assert loop(order, 600).tolist() == [int(number) for number in order if number >= 600]
with Path("blocks").open("wb") as file:
    file.write(bytes(64 * 4096))
assert read_blocks("blocks", [0, 4096, 8192], 4096, 2) == 3 * 4096
assert read_blocks("blocks", [0], 64 * 4096, 1) == 64 * 4096
