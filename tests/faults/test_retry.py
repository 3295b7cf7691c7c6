"""What may succeed is tried again, as the server wants it, and nothing else is."""

from tests.faults.conftest import rows
from tests.faults.play import play, play_alone
from tests.faults.scenarios import RETRY, Scenario
from tests.faults.server import Ports


@rows(RETRY, alone=False)
async def test_retry(scenario: Scenario, ports: Ports) -> None:
    await play(scenario, ports)


@rows(RETRY, alone=True)
def test_retry_measured(scenario: Scenario, ports: Ports) -> None:
    play_alone(scenario, ports)
