"""Keys and prompts stay where they belong, and no server can fill the memory or hold the loop."""

from tests.faults.conftest import rows
from tests.faults.play import play, play_alone
from tests.faults.scenarios import SECURITY, Scenario
from tests.faults.server import Ports


@rows(SECURITY, alone=False)
async def test_security(scenario: Scenario, ports: Ports) -> None:
    await play(scenario, ports)


@rows(SECURITY, alone=True)
def test_security_measured(scenario: Scenario, ports: Ports) -> None:
    play_alone(scenario, ports)
