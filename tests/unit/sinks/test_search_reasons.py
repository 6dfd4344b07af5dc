from __future__ import annotations

import pytest

from sinks.retry import search_error
from sinks.search.reasons import reason_of
from sinks.search.wire import Answer


def body(reason: str, caused_by: str | None = None) -> dict[str, object]:
    behind = {} if caused_by is None else {"caused_by": {"type": "x", "reason": caused_by}}
    return {"error": {"type": "x", "reason": reason, **behind}}


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        (
            "Validation Failed: 1: this action would add [2] total LOCAL_ONLY shards, but this cluster currently has [1000]/[1000] maximum "
            "LOCAL_ONLY shards open;",
            "cluster.max_shards_per_node",
        ),
        ("Limit of total fields [1000] has been exceeded", "index.mapping.total_fields.limit"),
        ("mapper [rank] cannot be changed from type [integer] to [byte]", "delete the index"),
        ("Invalid index name [A], must be lowercase", "`index`"),
        (
            "index [shop.orders@1] blocked by: [FORBIDDEN/8/index write (api)];",
            'PUT /shop.orders@1/_settings {"index.blocks.write": null}',
        ),
        ("blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];", "cluster.blocks.create_index"),
        (
            "index [a] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];",
            "free disk space",
        ),
        ("Cannot delete indices that are being snapshotted: [[a/b]]. Try again after snapshot finishes", "_snapshot/_status"),
        ("failed to process cluster event (create-index [a], cause [api]) within 30s", "_cluster/health"),
        ("[parent] Data too large, data for [<http_request>] would be [9/8.5mb], which is larger than", "heap"),
    ],
)
def test_a_known_reason_is_shown_with_what_helps(text: str, helps: str) -> None:
    for answer in (body(text), body("outer", text)):
        reason = reason_of(answer)
        assert reason is not None
        assert reason.text in text
        assert helps in str(reason.hint)


@pytest.mark.parametrize(
    "text",
    [
        "failed to parse field [rank] of type [byte] in document with id 'canary'. Preview of field's value: 'canary'",
        "[canary]: version conflict, current version [9] is higher or equal to the one provided [8]",
        "Document contains at least one immense term in field=\"note\" … prefix of the first immense term is: '[99, 97, 110]...'",
        "",
    ],
)
def test_a_reason_that_may_quote_a_document_is_not(text: str) -> None:
    assert reason_of(body(text)) is None
    assert reason_of(body("outer", text)) is None


def test_an_answer_of_another_form_has_no_reason() -> None:
    assert [reason_of(found) for found in (None, "text", [], {}, {"error": "text"})] == [None] * 5


@pytest.mark.parametrize("said", ["cause", "reason"])
def test_what_failed_first_under_a_query_is_its_error(said: str) -> None:
    """As `_delete_by_query` answers when its index is deleted on the way: without an `error`."""
    gone = {"type": "index_not_found_exception", "reason": "no such index [i]"}
    answer = Answer(
        404, {"took": 75, "deleted": 1000, "failures": [{"index": "i", said: gone}, {"index": "i", said: {"type": "y"}}]}
    )
    assert answer.error_type == "index_not_found_exception"
    assert search_error("s", "x", answer.status, answer.error_type).retryable


@pytest.mark.parametrize("failures", [None, [], ["canary"], [{}], "canary", 7])
def test_an_answer_without_a_failure_has_no_error(failures: object) -> None:
    answer = Answer(404, {"failures": failures})
    assert answer.error_type == ""
    assert reason_of(answer.body) is None
