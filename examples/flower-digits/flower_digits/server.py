"""The server: AdaOMD-TCH with a uniform preference, that is, equal losses."""

from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import equipoise as eq
from equipoise.atomic import replacing
from equipoise.flower import PreferenceStrategy
from flower_digits.task import first_model

torch.set_num_threads(1)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients, least, folder = int(config["clients"]), int(config["least-nodes"]), str(config["checkpoint"]) or None
    strategy = PreferenceStrategy(
        eq.OMD(float(config["step-size"]), eq.Entropic()),
        conversion=eq.Adaptive(capacity=8),
        objectives=clients,
        seed=int(config["seed"]),
        evaluate_solution=True,
        fraction_evaluate=float(config["evaluate"]),
        checkpoint=folder,
        resume=folder if config["resume"] else None,
        min_train_nodes=least,
        min_evaluate_nodes=least,
        min_available_nodes=least,
    )
    first = ArrayRecord(dict(first_model(int(config["seed"])).state_dict()))
    rounds, timeout = int(config["num-rounds"]), float(config["timeout"])
    result = strategy.start(grid, first, num_rounds=rounds, timeout=timeout)
    if config["out"]:
        models = {"model": result.arrays, "solution": strategy.solution()}
        arrays = {f"{kind}.{name}": x.numpy() for kind, record in models.items() for name, x in record.items()}
        with replacing(Path(str(config["out"]))) as file:
            np.savez(file, allow_pickle=False, weights=np.asarray(strategy.weights), **arrays)
