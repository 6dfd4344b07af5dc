"""docs/documents.md says what real servers show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Database
from tests.documents.page import PAGE, parts
from tests.documents.writing import written

pytestmark = [pytest.mark.spark, pytest.mark.opensearch]


def test_the_page_is_not_stale(postgres: Database, opensearch: Any, valkey: Any, spark: Any, tmp_path: Any) -> None:
    given = {"opensearch": opensearch, "valkey": valkey, "spark": spark, "tmp_path": tmp_path}
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(PAGE, parts(postgres.connect(), given.__getitem__)), "make docs"
