"""Run the example with the real Flower in one process; arguments: its folder, a scenario and a trace.

Not a test: `test_flower.py` runs it with an interpreter that has Flower.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

import flwr
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class Neighbours(Grid):
    """Delivers every message at once, to a client app in the same process."""

    def __init__(self, client_app, num_nodes, config):
        self.client_app, self.num_nodes, self.config = client_app, num_nodes, config

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def get_node_ids(self):
        return [1000 + node for node in reversed(range(self.num_nodes))]

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{number + 1}"  # a real grid numbers what it carries
            reply: Message = self.client_app(message, context(message.metadata.dst_node_id, self.config))
            replies.append(reply)
        return replies


def context(node, config):
    """As `flwr run` makes it for a node; node 0 is the server."""
    identity = {"partition-id": node - 1000} if node else {}
    return Context(run_id=1, node_id=node, node_config=identity, state=RecordDict(), run_config=config)


def main(folder, scenario, trace):
    sys.path += [str(Path(__file__).parents[2]), os.environ.get("HELIOMESH_SITE", ""), folder]  # Flower's own first
    client_app, server_app = (import_module(f"heliomesh_flower.{name}_app").app for name in ("client", "server"))
    print("flwr", flwr.__version__)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # as a server's own process has
    config = {"scenario": scenario, "trace": trace}
    server_app(Neighbours(client_app, 5, config), context(0, config))


if __name__ == "__main__":
    main(*sys.argv[1:])
