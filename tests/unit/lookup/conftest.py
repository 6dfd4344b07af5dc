"""The log's own fixtures."""

from tests.unit.log.conftest import quick_folder as quick_folder
