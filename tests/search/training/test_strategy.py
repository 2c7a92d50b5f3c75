"""Which training plans are looked at."""

from hypothesis import given
from hypothesis import strategies as st

from tfperf.search.training.strategy import TrainingSpace
from tfperf.training.plan import CHANGES, LOOPS, VARIABLES, TrainingPlan

SPACE = TrainingSpace(
    changes=tuple(CHANGES),
    why_not={},
    threads=(None, 1),
    batch_sizes=(32, 64),
    takes_arrays=True,
    steps_per_execution=16,
)


def plans():
    """Any plan of the space."""
    subset = lambda known: st.sets(st.sampled_from(sorted(known))).map(  # noqa: E731
        lambda chosen: tuple(one for one in known if one in chosen)
    )
    return st.builds(
        TrainingPlan,
        changes=subset(CHANGES),
        loop=st.sampled_from(sorted(LOOPS)),
        threads=st.sampled_from([None, 1]),
        variables=subset(VARIABLES),
        batch_size=st.sampled_from([32, 64]),
    ).filter(lambda plan: not set(LOOPS[plan.loop].in_place_of) & set(plan.changes))


def parts_that_differ(one, other):
    """The fields in which two plans differ, sets by each of their members; a loop stands for what it makes itself."""
    fields = [name for name in ("threads", "batch_size") if getattr(one, name) != getattr(other, name)]
    loop, changes = (f"to {other.loop}",) if one.loop != other.loop else (), {*one.changes} ^ {*other.changes}
    if loop:
        changes -= set(LOOPS[other.loop].in_place_of)
    return [*loop, *fields, *sorted(changes), *sorted({*one.variables} ^ {*other.variables})]


@given(plans())
def test_neighbours_differ_in_one_thing_each_in_another(plan):
    differences = [parts_that_differ(plan, other) for _, other in SPACE.neighbours(plan)]
    assert all(len(one) == 1 for one in differences)
    wanted = len(CHANGES) - len(LOOPS[plan.loop].in_place_of) + len(VARIABLES) + len(LOOPS) + 1
    assert len({one[0] for one in differences}) == len(differences) == wanted


@given(plans())
def test_what_was_changed_can_be_changed_back_under_another_name(plan):
    for what, other in SPACE.neighbours(plan):
        back = {again: name for name, again in SPACE.neighbours(other)}
        update = {}
        if what in LOOPS:
            changes = tuple(name for name in plan.changes if name not in LOOPS[what].in_place_of)
            update = {"changes": changes, "steps_per_execution": 16 if plan.loop == "fit" else 1}
        assert back[plan.model_copy(update=update)] != what


def test_everything_at_once_comes_first():
    first, second = SPACE.beginnings()
    assert first.changes == ("fuse", "fast_optimizer")
    assert second.changes == ("mixed_bfloat16", "fuse", "fast_optimizer")
    assert first.loop == second.loop == "compiled"


def test_a_loop_by_xla_is_tried_where_xla_may_be():
    plain = SPACE.default(32)
    assert "xla" in dict(SPACE.neighbours(plain))
    assert "xla" not in dict(SPACE._replace(changes=("fuse",)).neighbours(plain))
    assert "xla" not in dict(SPACE._replace(why_not={"jit_compile": "a layer has no XLA"}).neighbours(plain))


def test_what_cannot_be_done_is_left_out():
    space = SPACE._replace(why_not={"mixed_bfloat16": "no arithmetic", "fuse": "no layers"}, takes_arrays=False)
    assert {one.changes for one in space.beginnings()} == {("fast_optimizer",)}
    assert {one.loop for one in space.beginnings()} == {"fit"}
    seen = [other for _, other in space.neighbours(space.default(None))]
    assert not any({"mixed_bfloat16", "fuse"} & {*one.changes} or one.loop != "fit" for one in seen)
    assert space.left_out == {"mixed_bfloat16": "no arithmetic", "fuse": "no layers"}
