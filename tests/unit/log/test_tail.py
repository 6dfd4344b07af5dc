"""The writer's topics, as they are begun and taken back."""

from __future__ import annotations

import pytest

from cdc.errors import HeadwaterError
from cdc.log.embedded.tail import OpenTopics


def test_a_topic_that_is_taken_back_leaves_its_number_and_its_folder() -> None:
    topics = OpenTopics([])
    kept = topics.begin("public.kept", "postgres")
    staged = [topics.begin("public.a", "postgres"), topics.begin("public.b", "postgres")]
    assert [topic.number for topic in (kept, *staged)] == [1, 2, 3]
    topics.take_back(staged)
    assert topics.get("public.a") is None
    assert topics.get("public.kept") is kept
    assert topics.begin("public.b", "postgres").number == 2
    assert OpenTopics([kept]).begin("public.c", "postgres").number == 2


def test_two_topics_never_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.log.embedded.tail.folder_of", str.casefold)
    topics = OpenTopics([])
    topics.begin("public.a", "postgres")
    with pytest.raises(HeadwaterError, match=r"its folder in the log is that of public\.a"):
        topics.begin("public.A", "postgres")
