"""A driver program of the tests: `python -m tests.bridges.ray_driver '{...}'` runs a job on a Ray of its own.

The rows that came are written as JSON to `result`.

With `nodes` it makes a cluster of so many, puts the holder of the limits on the last one, and takes away a node at each of the
`losses`, which are numbers of records: first one without the holder, then the one with it.
"""

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncchat.batch.shards import Shards
from asyncchat.bridges import ray as bridge

STORE = 100 * 2**20


def main() -> None:
    how: dict[str, Any] = json.loads(sys.argv[1])
    result = Path(how.pop("result"))
    cluster = None
    if nodes := how.pop("nodes", 0):
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "object_store_memory": STORE,
                "include_dashboard": False,
            },
        )
        others = [
            cluster.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(nodes - 1)
        ]
        ray.init(address=cluster.address, log_to_driver=False)
        there = NodeAffinitySchedulingStrategy(others[-1].node_id, soft=True)
        bridge._start_holder = partial(bridge._start_holder, scheduling_strategy=there)
        losses = cluster, others, how.pop("losses"), how["journal"]
        threading.Thread(target=lose, args=losses, daemon=True).start()
    else:
        ray.init(
            num_cpus=3, include_dashboard=False, object_store_memory=STORE, log_to_driver=False
        )
    try:
        result.write_text(json.dumps(run(**how)))
    finally:
        ray.shutdown()
        if cluster is not None:
            cluster.shutdown()  # type: ignore[no-untyped-call]  # Ray has no types there


def run(inputs: int, **how: Any) -> list[Any]:
    rows = [{"id": f"k{n}", "text": f"q{n}"} for n in range(inputs)]
    dataset = ray.data.from_items(rows, override_num_blocks=12)
    out = bridge.run(dataset, model="m", prompt="{text}", id_column="id", stream=False, **how)
    return [[row["id"], row["text"], row["error"]] for row in out.take_all()]


def lose(cluster: Cluster, nodes: list[Any], losses: list[int], journal: str) -> None:
    shards = Shards(Path(journal))
    recorded = 0
    for node, at in zip(nodes, losses, strict=True):
        while recorded < at:
            time.sleep(0.05)
            recorded += sum(1 for _ in shards.catch_up())
        cluster.remove_node(node, allow_graceful=False)


if __name__ == "__main__":
    main()
