"""Run `examples/flower_client.py` with the real Flower in one process; arguments: schedule, data and example files.

Not a test: `test_flower.py` runs it with an interpreter that has Flower.
"""

import importlib.util
import sys

import flwr
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class Neighbours(Grid):
    """Delivers every message at once, to a client app in the same process."""

    def __init__(self, client_app, num_nodes):
        self.client_app, self.num_nodes = client_app, num_nodes

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def get_node_ids(self):
        return [1000 + node for node in range(self.num_nodes)]

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{number + 1}"  # a real grid numbers what it carries
            reply: Message = self.client_app(message, context(message.metadata.dst_node_id))
            replies.append(reply)
        return replies


def context(node):
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def main(schedule_file, data_file, example_file):
    spec = importlib.util.spec_from_file_location("flower_client", example_file)
    example = importlib.util.module_from_spec(spec)
    sys.modules["flower_client"] = example
    spec.loader.exec_module(example)
    server_app, client_app = example.apps(schedule_file, data_file)
    print("flwr", flwr.__version__)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # as a server's own process has
    server_app(Neighbours(client_app, example.Schedule.load(schedule_file).num_clients), context(0))


if __name__ == "__main__":
    main(*sys.argv[1:])
