"""What the tests of the documentation share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Some frameworks set up the root logger when an application is made."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for added in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(added)
        added.close()
    root.setLevel(level)
