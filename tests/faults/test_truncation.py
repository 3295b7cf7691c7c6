"""An answer that is cut or malformed is never taken for a whole one, and what came is kept."""

from tests.faults.conftest import rows
from tests.faults.players import Players
from tests.faults.scenarios import TRUNCATION, Scenario


@rows(TRUNCATION, alone=False)
async def test_truncation(scenario: Scenario, players: Players) -> None:
    await players.play(scenario)
