"""One fault server for all of these tests, and how a row of the table becomes a test."""

import sys
import tempfile
from collections.abc import Iterator, Sequence

import pytest

from tests.faults.players import Players
from tests.faults.scenarios import Scenario
from tests.faults.server import Ports, fault_server
from tests.forks import Forks

# Full queues, /proc and address-space limits are used as Linux has them.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(scope="session")
def ports() -> Iterator[Ports]:
    with fault_server() as ports:
        yield ports


@pytest.fixture(scope="session")
def players(ports: Ports, request: pytest.FixtureRequest) -> Iterator[Players]:
    mine = [row for item in request.session.items if (row := _row_of(item)) is not None]
    with (
        Forks("import tests.faults.play") as forks,
        tempfile.TemporaryFile("a+") as complaints,
    ):
        players = Players(mine, ports, forks, complaints)
        yield players
        players.close()


def _row_of(item: pytest.Item) -> Scenario | None:
    if isinstance(item, pytest.Function) and "players" in item.fixturenames:
        row = item.callspec.params["scenario"]
        assert isinstance(row, Scenario)
        return row
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rows that have a process of their own come first: the others are played meanwhile."""
    places = [place for place, item in enumerate(items) if _row_of(item) is not None]
    mine = [items[place] for place in places]
    mine.sort(key=lambda item: not getattr(_row_of(item), "is_alone", False))
    for place, item in zip(places, mine, strict=True):
        items[place] = item


def rows(scenarios: Sequence[Scenario], *, alone: bool) -> pytest.MarkDecorator:
    """Parametrize a test by the scenarios that need a process of their own, or by those that do not."""
    chosen = [
        pytest.param(scenario, id=scenario.name, marks=[pytest.mark.slow] if scenario.slow else [])
        for scenario in scenarios
        if scenario.is_alone is alone
    ]
    return pytest.mark.parametrize("scenario", chosen)
