"""The client: it trains on its digits, and evaluates on test digits with the same rotation."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from equipoise.federated import LocalWork
from equipoise.flower import evaluate_function, train_function
from flower_digits.task import MODEL, samples

torch.set_num_threads(1)  # more threads do not help a model of 3,760 parameters
app = ClientApp()


def own(context: Context, *, test: bool = False) -> tuple[Tensor, Tensor]:
    config = context.run_config
    client = int(context.node_config["partition-id"])
    return samples(client, int(config["clients"]), int(config["seed"]), test=test)


@app.train()
def train(message: Message, context: Context) -> Message:
    config = context.run_config
    work = LocalWork(int(config["local-epochs"]), None, float(config["local-step-size"]))
    return train_function(MODEL.module, own, work)(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return evaluate_function(MODEL.module, lambda held: own(held, test=True))(message, context)
