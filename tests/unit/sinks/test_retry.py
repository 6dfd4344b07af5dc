from __future__ import annotations

import random

import pytest

from cdc.errors import ConfigError
from sinks import KINDS, make_sink, options_model
from sinks.retry import Fate, backoff_s, bulk_fate, redis_error, search_error


@pytest.mark.parametrize("code", ["OOM", "LOADING", "READONLY", "MASTERDOWN", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MISCONF"])
def test_what_passes_is_waited_for(code: str) -> None:
    assert redis_error("cache", code).retryable
    assert code in str(redis_error("cache", code))


@pytest.mark.parametrize("code", ["WRONGTYPE", "NOAUTH", "WRONGPASS", "NOPERM", "MOVED", "ERR"])
def test_what_stays_needs_an_operator(code: str) -> None:
    error = redis_error("cache", code)
    assert not error.retryable
    assert error.hint


@pytest.mark.parametrize(
    ("status", "kind", "fate"),
    [
        (200, "", Fate.WRITTEN),
        (201, "", Fate.WRITTEN),
        (409, "version_conflict_engine_exception", Fate.STALE),
        (429, "es_rejected_execution_exception", Fate.AGAIN),
        (503, "unavailable_shards_exception", Fate.AGAIN),
        (404, "index_not_found_exception", Fate.FENCED),
        (400, "mapper_parsing_exception", Fate.DEAD),
        (400, "strict_dynamic_mapping_exception", Fate.DEAD),
        (400, "index_closed_exception", Fate.REFUSED),
        (403, "cluster_block_exception", Fate.REFUSED),
        (429, "cluster_block_exception", Fate.REFUSED),
        (503, "cluster_block_exception", Fate.AGAIN),
        (500, "exception", Fate.REFUSED),
    ],
)
def test_fates(status: int, kind: str, fate: Fate) -> None:
    assert bulk_fate(status, kind) is fate


def test_a_full_disk_is_waited_for_and_missing_rights_are_not() -> None:
    for status, what in ((403, "index.blocks"), (429, "flood stage"), (503, "leader")):
        blocked = search_error("s", "x", status, "cluster_block_exception")
        assert blocked.retryable
        assert what in str(blocked.hint)
    assert search_error("s", "x", 400, "index_closed_exception").retryable
    assert search_error("s", "x", 404, "index_not_found_exception").retryable
    assert not search_error("s", "x", 404, "aliases_not_found_exception").retryable
    assert search_error("s", "x", 503, "").retryable
    assert not search_error("s", "x", 403, "security_exception").retryable
    assert not search_error("s", "x", 401, "").retryable


def test_pauses_grow_and_are_bounded(seed: int) -> None:
    chance = random.Random(seed)
    pauses = [backoff_s(attempt, chance) for attempt in range(12)]
    assert all(0.05 <= pause <= 5 for pause in pauses)
    assert pauses[0] < pauses[4] < pauses[11]


def test_every_kind_is_known_and_no_other() -> None:
    for kind in set(KINDS) - {"iceberg"}:
        assert options_model(kind).model_fields["kind"]
    with pytest.raises(ConfigError, match="no store of kind"):
        options_model("mongo")


def test_a_broken_address_is_a_configuration_error() -> None:
    for kind in ("redis", "opensearch"):
        options = options_model(kind).model_validate({"kind": kind, "url": "nonsense"})
        with pytest.raises(ConfigError, match="url"):
            make_sink("x", options)
