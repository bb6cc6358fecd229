"""A run of `DomainTrainer` with the real Trainer on a tiny model, for tests in this process and in others.

    python with_trainer.py FOLDER STEPS [draw] [resume]

trains in FOLDER and leaves what it found in FOLDER/found-RANK.pt.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from equipoise.train.transformers import DomainTrainer

NAMES = ["small", "large", "odd"]
SIZES = [30, 60, 12]
METHOD: dict[str, Any] = {"method": "OMDeg-TCH"}


def rows(*, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences of different lengths whose next token depends on the domain."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for domain, size in enumerate(SIZES):
        for _ in range(size):
            length = int(torch.randint(4, 11, (), generator=generator))
            first = int(torch.randint(16, (), generator=generator))
            text = [(first + k * (domain + 1)) % 16 for k in range(length)]
            labels = text + [-100] * (10 - length)
            found.append({"input_ids": text + [0] * (10 - length), "labels": labels, "domain": NAMES[domain]})
    return found


def model(dropout: float = 0.1) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    rates = ends | {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=10, n_embd=16, n_layer=1, n_head=2, **rates))


def make(folder: Path, *, dropout: float = 0.1, trainer: dict[str, Any] | None = None, **changes: Any) -> DomainTrainer:
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 1,
        "max_steps": 20,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 5,
        "save_steps": 5,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 3,
        **changes,
    }
    settings = {"train_dataset": rows(), "domains": NAMES, "eval_dataset": rows(seed=1), **METHOD, **(trainer or {})}
    return DomainTrainer(model(dropout), TrainingArguments(str(folder), **arguments), **settings)


def found(trainer: DomainTrainer) -> dict[str, Any]:
    assert trainer.mol is not None
    return {
        "weights": {name: p.detach().clone() for name, p in trainer.mol.model.named_parameters()},
        "lambda": trainer.mol.duals,
        "logs": json.dumps(trainer.state.log_history),
        "step": trainer.state.global_step,
    }


if __name__ == "__main__":
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    draw = {"explore": 0.3} if "draw" in sys.argv else False
    calls = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 12 // ranks, "max_steps": steps}
    run = make(folder, dropout=0.0 if "still" in sys.argv else 0.1, trainer={"draw": draw}, **calls)
    run.train(resume_from_checkpoint="resume" in sys.argv)
    torch.save(found(run), folder / f"found-{os.environ.get('RANK', '0')}.pt")
    if ranks > 1:
        torch.distributed.barrier()
        sys.stdout.flush()
        os._exit(0)  # a gloo thread that frees a tensor while the interpreter ends aborts the process
