numbers, order = np.arange(1000), np.random.default_rng(0).permutation(1000)
assert gather(numbers, order) == numbers.sum()
with Path("blocks").open("wb") as file:
    file.write(bytes(64 * 4096))
assert read_blocks("blocks", [0, 4096, 8192], 2) == 3 * 4096
assert read_in_one_piece("blocks", 2 * 4096) == 2 * 4096
