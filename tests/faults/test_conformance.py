"""Legal streams, however odd, come out right."""

from tests.faults.conftest import rows
from tests.faults.play import play
from tests.faults.scenarios import CONFORMANCE, Scenario
from tests.faults.server import Ports


@rows(CONFORMANCE, alone=False)
async def test_conformance(scenario: Scenario, ports: Ports) -> None:
    await play(scenario, ports)
