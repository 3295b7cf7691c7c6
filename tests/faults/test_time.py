"""Every call ends: whoever stalls, drips, pings or floods."""

from tests.faults.conftest import rows
from tests.faults.play import play, play_alone
from tests.faults.scenarios import TIME, Scenario
from tests.faults.server import Ports


@rows(TIME, alone=False)
async def test_time(scenario: Scenario, ports: Ports) -> None:
    await play(scenario, ports)


@rows(TIME, alone=True)
def test_time_measured(scenario: Scenario, ports: Ports) -> None:
    play_alone(scenario, ports)
