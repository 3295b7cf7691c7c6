"""An answer that is cut or malformed is never taken for a whole one, and what came is kept."""

from tests.faults.conftest import rows
from tests.faults.play import play
from tests.faults.scenarios import TRUNCATION, Scenario
from tests.faults.server import Ports


@rows(TRUNCATION, alone=False)
async def test_truncation(scenario: Scenario, ports: Ports) -> None:
    await play(scenario, ports)
