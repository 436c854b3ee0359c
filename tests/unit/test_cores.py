"""How a worker's cores are shared between its children."""

import os

import pytest

from tasks.engine.costs.threads import CorePool

pytestmark = pytest.mark.unit


def test_a_child_alone_uses_every_core_and_gives_them_back():
    pool = CorePool(children=4, threads=8)
    first, second = pool.member(0), pool.member(1)
    assert first.work() == 8
    assert second.work() == 4
    assert first.work() == 4
    second.rest()
    assert first.work() == 8


def test_no_child_gets_less_than_its_share():
    pool = CorePool(children=3, threads=3)
    members = [pool.member(i) for i in range(3)]
    assert [m.work() for m in members] == [3, 1, 1]
    assert [m.work() for m in members] == [1, 1, 1]


def test_a_member_knows_its_share_and_all_there_is():
    member = CorePool(children=3, threads=8).member(1)
    assert (member.least, member.most) == (2, 8)


def test_a_replacement_begins_at_rest():
    pool = CorePool(children=2, threads=2)
    pool.member(0).work()
    pool.member(0)
    assert pool.member(1).work() == 2


def test_children_see_each_other_across_a_fork():
    pool = CorePool(children=2, threads=2)
    child = os.fork()
    if child == 0:
        pool.member(1).work()
        os._exit(0)
    os.waitpid(child, 0)
    pool.mark(0, is_busy=True)
    assert pool.threads_now() == 1
