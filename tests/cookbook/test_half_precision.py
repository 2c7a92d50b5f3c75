"""tfperf.cookbook.half_precision: what a recipe says of a slower format."""

import pytest

from tfperf.cookbook.half_precision import far_slower, why_slower

CASTS = "the casts cost more than the kernels save"


@pytest.mark.parametrize(
    ("features", "accelerators", "far", "words"),
    [
        (("avx512_fp16",), (), False, CASTS),
        (("avx512_fp16",), (), True, "oneDNN"),
        (("avx512_bf16",), (), False, "this CPU has none of avx512_fp16, amx_fp16, asimdhp"),
        (("avx512_bf16",), (), True, "this CPU has none of avx512_fp16, amx_fp16, asimdhp"),
        (("avx2",), ("NVIDIA H100",), False, CASTS),
        (("avx512_fp16",), ("NVIDIA H100",), True, CASTS),
    ],
)
def test_the_reason_is_that_of_the_device_that_computes(environment, features, accelerators, far, words):
    machine = environment.model_copy(update={"cpu_features": features, "accelerators": accelerators})
    assert words in why_slower("float16", far=far, environment=machine)


def test_what_is_far_slower_is_told_with_its_step():
    words = far_slower("mixed_float16", 3.25, 0.05)
    assert words.startswith(
        "mixed_float16: far slower here, a step took 3.2 s, 65 times as long as in float32, because"
    )
