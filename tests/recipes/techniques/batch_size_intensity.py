assert intensity_of_dense(1, 4096, 4096) < 0.5
assert intensity_of_dense(128, 4096, 4096) > 100 * intensity_of_dense(1, 4096, 4096)
assert intensity_of_pointwise(1, 10) == intensity_of_pointwise(1000, 10) == 1 / 8
