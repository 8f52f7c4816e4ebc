"""What a client does in Flower: a module of its own, so that its actors import it once."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F
from work import BATCH, asked

client, held = ClientApp(), {}


@client.train()
def train(message, context):
    """One pass over the rows of this node's client. The data and the network stay in the actor between messages."""
    if not held:
        torch.set_num_threads(1)
        held["work"], held["data"], _ = asked()
        held["module"] = held["data"].network()
    module = held["module"]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = held["data"].client(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(module.parameters(), lr=held["work"].lr)
    for rows in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)
