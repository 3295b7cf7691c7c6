"""However a caller leaves, nothing is left: no socket, no task, no place, no word on stderr."""

from tests.faults.conftest import rows
from tests.faults.play import play, play_alone
from tests.faults.scenarios import LIFECYCLE, Scenario
from tests.faults.server import Ports


@rows(LIFECYCLE, alone=False)
async def test_lifecycle(scenario: Scenario, ports: Ports) -> None:
    await play(scenario, ports)


@rows(LIFECYCLE, alone=True)
def test_lifecycle_measured(scenario: Scenario, ports: Ports) -> None:
    play_alone(scenario, ports)
