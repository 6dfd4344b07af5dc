"""Which of OpenSearch's reasons may be shown, and the command that helps. Pure.

A cluster's reason for refusing something may quote documents. So only reasons of known forms are passed on, none of which holds a row's
value: names of indices, fields, settings and rights, and numbers. Of all others the error's type is shown, as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sinks.retry import Reason

_NAME: Final = r"\[[^\]]*\]"
_BLOCKED: Final = r"(?:index \[(?P<index>[^\]]*)\] )?blocked by:"
_UNBLOCK: Final = 'PUT /INDEX/_settings {"index.blocks.%s": null}'
_CLUSTER: Final = 'PUT /_cluster/settings {"persistent": {"%s": %s}}'

_RIGHTS: Final = "docs/stores.md#rights-in-opensearch says on which indices"

_KNOWN: Final[tuple[tuple[re.Pattern[str], str | None, bool | None], ...]] = tuple(
    (re.compile(pattern), hint, retryable)
    for pattern, hint, retryable in (
        (
            rf"this action would add \[\d+\] total [\w ]*shards, but this cluster currently has {_NAME}/{_NAME} maximum [\w ]*shards open",
            f"delete indices, or {_CLUSTER % ('cluster.max_shards_per_node', '2000')}",
            True,
        ),
        (
            rf"Limit of total fields {_NAME} has been exceeded",
            'PUT /INDEX/_settings {"index.mapping.total_fields.limit": 5000}',
            False,
        ),
        (
            rf"mapper {_NAME} cannot be changed from type {_NAME} to {_NAME}",
            "delete the index: it is built again from the log",
            False,
        ),
        (rf"analyzer {_NAME} has not been configured in mappings", None, False),
        (rf"No handler for type {_NAME} declared on field {_NAME}", None, False),
        (rf"Invalid index name {_NAME}, [\w .,'-]+", "set `index` in cdc.toml", False),
        (rf"unknown setting {_NAME}", None, False),
        (rf"Failed to parse value {_NAME} for setting {_NAME} must be [<>=]+ \d+", "correct that setting in cdc.toml", False),
        (rf"failed to parse setting {_NAME} with value {_NAME} as a [\w ]+ value", "correct that setting in cdc.toml", False),
        (rf"{_BLOCKED} \[FORBIDDEN/5/index read-only \(api\)\]", _UNBLOCK % "read_only", True),
        (rf"{_BLOCKED} \[FORBIDDEN/7/index read \(api\)\]", _UNBLOCK % "read", True),
        (rf"{_BLOCKED} \[FORBIDDEN/8/index write \(api\)\]", _UNBLOCK % "write", True),
        (rf"{_BLOCKED} \[FORBIDDEN/9/index metadata \(api\)\]", _UNBLOCK % "metadata", True),
        (rf"{_BLOCKED} \[FORBIDDEN/4/index closed\]", "POST /INDEX/_open", True),
        (rf"{_BLOCKED} \[FORBIDDEN/6/cluster read-only \(api\)\]", _CLUSTER % ("cluster.blocks.read_only", "null"), True),
        (
            rf"{_BLOCKED} \[FORBIDDEN/10/cluster create-index blocked \(api\)\]",
            f"free disk space, then {_CLUSTER % ('cluster.blocks.create_index', 'null')}",
            True,
        ),
        (rf"{_BLOCKED} \[\w+/12/[\w ,-]+(\(api\))?\]", "free disk space: the index is read-only above the flood stage", True),
        (
            rf"{_BLOCKED} \[SERVICE_UNAVAILABLE/\d+/[\w /]+\]",
            "the cluster has no leader, or is starting: see GET _cluster/health",
            True,
        ),
        (
            rf"Cannot (delete|close|open) indices that are being (snapshotted|restored): {_NAME}+",
            "wait for the snapshot: GET _snapshot/_status",
            True,
        ),
        (rf"no permissions for {_NAME}", f"grant the user that right: {_RIGHTS}", False),
        (r"failed to process cluster event \([\w \[\].,@-]*\) within \w+", "the cluster is busy: see GET _cluster/health", True),
        (
            rf"\[\w+\] Data too large, data for \[<\w+>\] would be {_NAME}",
            "give the nodes more heap, or set `request_bytes` lower",
            True,
        ),
        (rf"Invalid alias name {_NAME}, an index exists with the same name as the alias", None, False),
    )
)


def error_of(body: Any) -> Any:
    """The error in an answer or a bulk item. A request by query that came to its documents has instead what failed first: a document or a shard."""
    if not isinstance(body, Mapping):
        return None
    failures = body.get("failures")
    if "error" not in body and isinstance(failures, list) and failures and isinstance(failures[0], Mapping):
        return failures[0].get("cause", failures[0].get("reason"))
    return body.get("error")


def reason_of(body: Any) -> Reason | None:
    """The reason in an error's answer (or a bulk item); None when it has no form that may be shown."""
    for text in _texts(error_of(body)):
        for pattern, hint, retryable in _KNOWN:
            if (found := pattern.search(text)) is not None:
                index = found.groupdict().get("index") or "INDEX"
                return Reason(found[0], None if hint is None else hint.replace("INDEX", index), retryable)
    return None


def _texts(error: Any) -> Iterator[str]:
    """The reason, and those behind it."""
    while isinstance(error, Mapping):
        yield str(error.get("reason", ""))
        error = error.get("caused_by")
