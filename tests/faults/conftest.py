"""One fault server for all of these tests, and how a row of the table becomes a test."""

import sys
from collections.abc import Iterator, Sequence

import pytest

# Before they are imported: so that their assertions tell what was compared.
pytest.register_assert_rewrite(*(f"tests.faults.{name}" for name in ("callers", "play", "run")))

from tests.faults.scenarios import Scenario  # noqa: E402
from tests.faults.server import Ports, fault_server  # noqa: E402

# Full queues, /proc and address-space limits are used as Linux has them.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(scope="session")
def ports() -> Iterator[Ports]:
    with fault_server() as ports:
        yield ports


def rows(scenarios: Sequence[Scenario], *, alone: bool) -> pytest.MarkDecorator:
    """Parametrize a test by the scenarios that need a process of their own, or by those that do not."""
    chosen = [
        pytest.param(scenario, id=scenario.name, marks=[pytest.mark.slow] if scenario.slow else [])
        for scenario in scenarios
        if scenario.is_alone is alone
    ]
    return pytest.mark.parametrize("scenario", chosen)
