"""However a caller leaves, nothing is left: no socket, no task, no place, no word on stderr."""

from tests.faults.conftest import rows
from tests.faults.players import Players
from tests.faults.scenarios import LIFECYCLE, Scenario


@rows(LIFECYCLE, alone=False)
async def test_lifecycle(scenario: Scenario, players: Players) -> None:
    await players.play(scenario)


@rows(LIFECYCLE, alone=True)
def test_lifecycle_measured(scenario: Scenario, players: Players) -> None:
    players.play_alone(scenario)
