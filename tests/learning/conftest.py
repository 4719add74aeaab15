"""Tests name code of their own as module:name, where a user would hand over the object or say trust."""

from collections.abc import Iterator

import pytest

from heliomesh.common.catalog import trusting


@pytest.fixture(autouse=True)
def _trusted() -> Iterator[None]:
    with trusting(True):
        yield
