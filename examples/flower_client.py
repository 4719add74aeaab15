"""Replay a heliomesh schedule with Flower: who trains and whose model arrives is as planned and simulated.

    heliomesh export ring10 receiver --format flower --out schedule      # schedule/schedule.json
    pip install "flwr[simulation]"
    python examples/flower_client.py schedule/schedule.json data.npz     # train_inputs, train_labels

Flower puts a server between clients, and devices here have none. So the server plays the radio: it keeps every
device's model, asks those that train in a round for their local steps, and mixes what arrives by the schedule's
weights. Clients hold their own samples only. Nothing of heliomesh is needed to replay.

The model is softmax regression, written out, so that the example needs numpy and Flower alone; put your own in place
of `first_weights`, `local_steps` and `accuracy`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray


# Replaying a schedule: no Flower in here


@dataclass(frozen=True)
class Schedule:
    """What `schedule.json` says."""

    content: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> "Schedule":
        """Read the file; refuses other formats and versions, and a rule that this example does not have."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        found = (content.get("format"), content.get("version"))
        if found != ("heliomesh-schedule", 1):
            raise ValueError(f"{path}: expected a heliomesh-schedule of version 1, actual {found}")
        if content["aggregation"] == "update":
            raise ValueError(f"{path}: expected another aggregation than 'update', actual 'update'")
        return cls(content)

    @property
    def num_clients(self) -> int:
        """Number of devices."""
        return len(self.content["clients"])

    @property
    def num_rounds(self) -> int:
        """Number of slots."""
        return len(self.content["rounds"])

    def samples(self, client: int) -> list[int]:
        """Training samples of a client."""
        return list(self.content["clients"][client]["samples"])

    def trains(self, number: int) -> list[int]:
        """Clients that train in a round."""
        return list(self.content["rounds"][number]["trains"])

    def learning_rate(self, number: int) -> float:
        """Learning rate of a round."""
        by_round = self.content.get("learning_rates")
        return float(self.content["learning_rate"] if by_round is None else by_round[number])

    def mixed(self, number: int, models: Array) -> Array:
        """Models (client, parameter) after a round's packets; lost weight stays with oneself or is shared."""
        after = models.copy()
        arrived = np.zeros((len(models), len(models)))  # a_ij where j's packet reached i
        for receiver, sender in self.content["rounds"][number]["arrivals"]:
            client = self.content["clients"][receiver]
            arrived[receiver, sender] = client["weights"][client["neighbours"].index(sender)]
        own = np.array([client["self_weight"] for client in self.content["clients"]])
        if self.content["aggregation"] == "renormalized":
            arrived /= (own + arrived.sum(1))[:, None]
        if self.content["aggregation"] == "reassigned":
            arrived *= ((1 - own) / np.maximum(arrived.sum(1), 1e-12))[:, None]
        for receiver, sender in zip(*np.nonzero(arrived), strict=True):
            after[receiver] += arrived[receiver, sender] * (models[sender] - models[receiver])
        return after


# The model: softmax regression


def first_weights(num_inputs: int, num_classes: int) -> Array:
    """All zeros, flat; (parameter,)."""
    return np.zeros((num_inputs + 1) * num_classes)


def local_steps(
    weights: Array, inputs: Array, labels: Array, steps: int, batch: int, rate: float, rng: np.random.Generator
) -> Array:
    """Steps of SGD on a client's own samples; inputs (sample, input) → (parameter,)."""
    matrix = weights.reshape(inputs.shape[1] + 1, -1).copy()
    for _ in range(steps):
        chosen = rng.integers(len(inputs), size=batch)
        x = np.hstack([inputs[chosen], np.ones((batch, 1))])
        score = x @ matrix
        prob = np.exp(score - score.max(1, keepdims=True))
        prob /= prob.sum(1, keepdims=True)
        prob[np.arange(batch), labels[chosen]] -= 1
        matrix -= rate / batch * x.T @ prob
    return matrix.reshape(-1)


def accuracy(weights: Array, inputs: Array, labels: Array) -> float:
    """Share of samples classified rightly."""
    matrix = weights.reshape(inputs.shape[1] + 1, -1)
    guess = (np.hstack([inputs, np.ones((len(inputs), 1))]) @ matrix).argmax(1)
    return float((guess == labels).mean())


def load_data(path: str | Path) -> tuple[Array, Array]:
    """Training inputs (sample, input) and labels (sample,) of an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        inputs, labels = file["train_inputs"], file["train_labels"]
    return inputs.reshape(len(inputs), -1).astype(np.float64), labels.astype(np.int64)


# Flower


def apps(schedule_file: str, data_file: str, report: Any = print) -> tuple[Any, Any]:
    """The server app and the client app of a schedule; ``report`` receives one line per tenth of the rounds."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        """Local steps on the client's own samples, which are all that it reads."""
        schedule = Schedule.load(schedule_file)
        settings, config = schedule.content, message.content["config"]
        own = schedule.samples(int(config["client"]))
        inputs, labels = load_data(data_file)
        rng = np.random.default_rng([int(config["client"]), int(config["round"])])
        weights = message.content["weights"].to_numpy_ndarrays()[0]
        trained = local_steps(
            weights,
            inputs[own],
            labels[own],
            settings["local_steps"],
            settings["batch"],
            schedule.learning_rate(int(config["round"])),
            rng,
        )
        return Message(RecordDict({"weights": ArrayRecord([trained])}), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        """The radio: models of all devices, round by round."""
        schedule = Schedule.load(schedule_file)
        inputs, labels = load_data(data_file)
        nodes = sorted(grid.get_node_ids())
        while len(nodes) < schedule.num_clients:  # they connect one after the other
            nodes = sorted(grid.get_node_ids())
        models = np.stack([first_weights(inputs.shape[1], int(labels.max()) + 1)] * schedule.num_clients)
        for number in range(schedule.num_rounds):
            sent = [
                Message(
                    RecordDict(
                        {
                            "weights": ArrayRecord([models[client]]),
                            "config": ConfigRecord({"client": client, "round": number}),
                        }
                    ),
                    dst_node_id=nodes[client],
                    message_type="train",
                    group_id=str(number),
                )
                for client in schedule.trains(number)
            ]
            client_of = {nodes[client]: client for client in schedule.trains(number)}
            for reply in grid.send_and_receive(sent) if sent else ():
                if reply.has_error():
                    raise RuntimeError(f"round {number}: {reply.error}")
                models[client_of[reply.metadata.src_node_id]] = reply.content["weights"].to_numpy_ndarrays()[0]
            models = schedule.mixed(number, models)
            if (number + 1) % max(schedule.num_rounds // 10, 1) == 0:
                scores = [accuracy(model, inputs, labels) for model in models]
                report(f"round {number + 1}: accuracy {np.mean(scores):.4f}")

    return server_app, client_app


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    server, client = apps(*sys.argv[1:3])
    run_simulation(server, client, num_supernodes=Schedule.load(sys.argv[1]).num_clients)
