"""Legal streams, however odd, come out right."""

from tests.faults.conftest import rows
from tests.faults.players import Players
from tests.faults.scenarios import CONFORMANCE, Scenario


@rows(CONFORMANCE, alone=False)
async def test_conformance(scenario: Scenario, players: Players) -> None:
    await players.play(scenario)
