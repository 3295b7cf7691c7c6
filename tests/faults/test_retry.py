"""What may succeed is tried again, as the server wants it, and nothing else is."""

from tests.faults.conftest import rows
from tests.faults.players import Players
from tests.faults.scenarios import RETRY, Scenario


@rows(RETRY, alone=False)
async def test_retry(scenario: Scenario, players: Players) -> None:
    await players.play(scenario)


@rows(RETRY, alone=True)
def test_retry_measured(scenario: Scenario, players: Players) -> None:
    players.play_alone(scenario)
