"""Federated learning on one machine: clients × seeds in one process, on CPU or one GPU."""

from equipoise.federated.local_work import BatchNorm, Engine, Evaluation, LocalWork, Precision, Sent
from equipoise.federated.models import Dense, Model, ResNet18, ResNet20
from equipoise.federated.rounds import History, Result, outputs, simulate
from equipoise.federated.server import Curve, Outputs, Point
from equipoise.federated.splits import ClientData, Deal, Dirichlet, PartialClass, Rotation, Samples, Split, deal
from equipoise.federated.task import LossSource, Participation, Task

__all__ = [
    "BatchNorm",
    "ClientData",
    "Curve",
    "Deal",
    "Dense",
    "Dirichlet",
    "Engine",
    "Evaluation",
    "History",
    "LocalWork",
    "LossSource",
    "Model",
    "Outputs",
    "PartialClass",
    "Participation",
    "Point",
    "Precision",
    "ResNet18",
    "ResNet20",
    "Result",
    "Rotation",
    "Samples",
    "Sent",
    "Split",
    "Task",
    "deal",
    "outputs",
    "simulate",
]
