"""Who finds nothing to do rests, until what he looks at changes or time has passed; and nobody rests while faults happen."""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.sim.course import Course
from tests.sim.lots import deal_dangers, deal_ddl, deal_rare, deal_ways, deal_work
from tests.sim.turns import REST_S, Party, Turns


def _course(seed: int) -> Course:
    chance = Random(seed)
    return Course(
        chance, deal_dangers(chance), deal_work(chance), deal_ways(chance), deal_ddl(chance), deal_rare(chance), None, Random(seed)
    )


class _Somebody:
    def __init__(self, *, busy: bool) -> None:
        self.busy = busy
        self.asked = 0
        self.world = 0

    def act(self) -> bool:
        self.asked += 1
        return self.busy

    def party(self) -> Party:
        return Party(self.act, 1.0, lambda: self.world)


def test_nobody_rests_while_faults_happen() -> None:
    idle, busy = _Somebody(busy=False), _Somebody(busy=True)
    turns = Turns(_course(1), [idle.party(), busy.party()])
    assert all(turns.step() for _ in range(200))
    assert min(idle.asked, busy.asked) > 60


def test_who_found_nothing_is_asked_again_when_something_has_changed_or_after_a_while() -> None:
    course, idle, busy = _course(2), _Somebody(busy=False), _Somebody(busy=True)
    turns = Turns(course, [idle.party(), busy.party()], resting=True)
    while not idle.asked:
        turns.step()
    until = course.clock.now + REST_S
    while course.clock.now < until - 1:
        turns.step()
    assert idle.asked == 1
    idle.world += 1
    for _ in range(20):
        turns.step()
    assert idle.asked == 2
    while course.clock.now < until + 3 * REST_S:
        turns.step()
    assert 3 <= idle.asked <= 6


def test_all_are_asked_again_once_all_rest() -> None:
    idle = [_Somebody(busy=False), _Somebody(busy=False)]
    turns = Turns(_course(3), [one.party() for one in idle], resting=True)
    seen = Counter(turns.step() for _ in range(90))
    assert seen == {True: 60, False: 30}
    assert [one.asked for one in idle] == [30, 30]
