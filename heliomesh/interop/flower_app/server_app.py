"""The radio: Flower puts a server between clients, and devices have none.

It keeps every device's model, asks those that train in a round for their local steps, and mixes what arrives by the
schedule's weights. Accuracy is measured on ``test.npz`` in the run's folder ``data``.
"""

import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from .replay import Array, ReplayedSchedule, accuracy, first_weights, load_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Models of all devices, round by round; prints a line per tenth of the rounds."""
    schedule = ReplayedSchedule.load(Path(__file__).with_name("schedule.json"))
    inputs, labels = load_data(Path(str(context.run_config["data"])) / "test.npz")
    node_of = _nodes(grid, schedule.num_clients)
    models = np.stack([first_weights(inputs.shape[1], schedule.content["num_classes"])] * schedule.num_clients)
    rounds = schedule.content["rounds"]
    for number, one in enumerate(rounds):
        models = schedule.mixed(number, _trained(grid, node_of, number, models, one["trains"]))
        if (number + 1) % max(len(rounds) // 10, 1) == 0:
            scores = [accuracy(model, inputs, labels) for model in models]
            print(f"round {number + 1}: accuracy {np.mean(scores):.4f}", flush=True)


def _nodes(grid: Grid, num_clients: int) -> dict[int, int]:
    """Node of every device, once all have connected and said which they are."""
    while len(nodes := list(grid.get_node_ids())) < num_clients:
        time.sleep(0.1)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    found = {int(reply.content["config"]["client"]): reply.metadata.src_node_id for reply in _replies(grid, asked)}
    if sorted(found) != list(range(num_clients)):
        raise RuntimeError(
            f"partition-id: expected one node for each of 0 to {num_clients - 1}, actual {sorted(found)}"
        )
    return found


def _trained(grid: Grid, node_of: dict[int, int], number: int, models: Array, clients: list[int]) -> Array:
    """Models (client, parameter) after the local steps of a round."""
    after, client_of = models.copy(), {node: client for client, node in node_of.items()}
    sent = [
        Message(
            RecordDict({"weights": ArrayRecord([models[client]]), "config": ConfigRecord({"round": number})}),
            dst_node_id=node_of[client],
            message_type="train",
            group_id=str(number),
        )
        for client in clients
    ]
    for reply in _replies(grid, sent):
        after[client_of[reply.metadata.src_node_id]] = reply.content["weights"].to_numpy_ndarrays()[0]
    return after


def _replies(grid: Grid, sent: list[Message]) -> list[Message]:
    replies = list(grid.send_and_receive(sent)) if sent else []
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(f"a client did not answer: {reply.error}")
    return replies
