"""Which child a request goes to."""

import pytest

from tasks.contract.messages import ChatMessage, GenerateRequest
from tasks.contract.prefixes import MAX_SENT, prefixes
from tasks.worker.pool.affinity import MAX_LEAD, Affinity

pytestmark = pytest.mark.unit


def chat(*contents: str) -> list[str]:
    roles = ["system", *["user", "assistant"] * len(contents)]
    messages = tuple(ChatMessage(role, text) for role, text in zip(roles, contents, strict=False))
    return prefixes(GenerateRequest("id", "model", messages=messages))


def test_a_conversations_next_turn_begins_with_its_earlier_ones():
    assert chat("s", "a", "b", "c")[:2] == chat("s", "a")
    assert chat("s", "a")[1] != chat("s", "b")[1]
    assert prefixes(GenerateRequest("id", "model", prompt="text")) == []


def test_owners_have_no_conversation_in_common():
    request = GenerateRequest(
        "id", "model", messages=(ChatMessage("user", "a"), ChatMessage("assistant", "b"))
    )
    assert not set(prefixes(request, "one")) & set(prefixes(request, "other"))
    assert prefixes(request, "one") == prefixes(request, "one")


def test_of_a_long_conversation_the_longest_prefixes_are_sent():
    names = chat(*map(str, range(40)))
    assert len(names) == MAX_SENT
    assert names[-1] == chat(*map(str, range(40)))[-1]


def test_the_freest_child_is_chosen_and_of_equals_the_first():
    assert Affinity().choose({0: 3, 1: 5}, chat("s", "a")) == 1
    assert Affinity().choose({0: 5, 1: 5}, chat("s", "a")) == 0


def test_the_next_turn_goes_where_the_last_one_was():
    affinity = Affinity()
    affinity.note(1, chat("s", "a"))
    assert affinity.choose({0: 8, 1: 7}, chat("s", "a", "b", "c")) == 1


def test_not_to_a_child_without_room_or_far_busier():
    affinity = Affinity()
    affinity.note(1, chat("s", "a"))
    assert affinity.choose({0: 1, 1: 0}, chat("s", "a", "b", "c")) == 0
    assert affinity.choose({0: 8, 1: 8 - MAX_LEAD - 1}, chat("s", "a", "b", "c")) == 0


def test_without_a_conversation_the_freest_advised_child_is_chosen():
    assert Affinity().choose({0: 8, 1: 4, 2: 5}, chat("s", "a"), advised=[1, 2]) == 2


def test_a_lead_counts_from_the_advised_child():
    affinity = Affinity()
    affinity.note(1, chat("s", "a"))
    later = chat("s", "a", "b", "c")
    assert affinity.choose({0: 8, 1: 2}, later, advised=[1]) == 1
    assert affinity.choose({0: 2, 1: 8}, later, advised=[0]) == 1
    assert affinity.choose({0: 8, 1: 4, 2: 5}, later, advised=[2]) == 1
    assert affinity.choose({0: 8, 1: 2, 2: 8}, later, advised=[0, 2]) == 0


def test_a_system_prompt_alone_only_settles_ties():
    affinity = Affinity()
    affinity.note(1, chat("s", "a"))
    assert affinity.choose({0: 8, 1: 7}, chat("s", "other")) == 0
    assert affinity.choose({0: 8, 1: 8}, chat("s", "other")) == 1


def test_a_dead_childs_prefixes_are_forgotten():
    affinity = Affinity()
    affinity.note(1, chat("s", "a"))
    affinity.forget(1)
    assert affinity.choose({0: 8, 1: 8}, chat("s", "a")) == 0


def test_only_the_latest_prefixes_are_kept():
    affinity = Affinity()
    affinity.note(1, chat("s", "first"))
    for number in range(2000):
        affinity.note(1, chat("other", str(number)))
    assert affinity.depth(1, chat("s", "first")) == 0
