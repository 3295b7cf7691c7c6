"""Keys and prompts stay where they belong, and no server can fill the memory or hold the loop."""

from tests.faults.conftest import rows
from tests.faults.players import Players
from tests.faults.scenarios import SECURITY, Scenario


@rows(SECURITY, alone=False)
async def test_security(scenario: Scenario, players: Players) -> None:
    await players.play(scenario)


@rows(SECURITY, alone=True)
def test_security_measured(scenario: Scenario, players: Players) -> None:
    players.play_alone(scenario)
