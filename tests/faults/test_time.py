"""Every call ends: whoever stalls, drips, pings or floods."""

from tests.faults.conftest import rows
from tests.faults.players import Players
from tests.faults.scenarios import TIME, Scenario


@rows(TIME, alone=False)
async def test_time(scenario: Scenario, players: Players) -> None:
    await players.play(scenario)


@rows(TIME, alone=True)
def test_time_measured(scenario: Scenario, players: Players) -> None:
    players.play_alone(scenario)
