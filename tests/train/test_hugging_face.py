"""The recipe for Hugging Face's Trainer, run with a stand-in for it: `transformers` is no dependency."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "hugging-face.md"
EPOCHS = 1000


class TrainingArguments(SimpleNamespace):
    pass


class TrainerCallback:
    pass


class Trainer:
    """What the real one does with a model, an optimizer and `compute_loss`, as of transformers 5.17."""

    def __init__(self, model: Any, args: Any, train_dataset: Any) -> None:
        self.model, self.args, self.data = model, args, train_dataset
        self.model_accepts_loss_kwargs = True
        self.callbacks: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def create_optimizer(self) -> torch.optim.Optimizer:
        assert self.args.optim == "sgd"
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
        return self.optimizer

    def compute_loss(self, model: Any, inputs: Any, return_outputs: Any = False, num_items_in_batch: Any = None) -> Any:
        raise NotImplementedError

    def say(self, what: str, state: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, what)(self.args, state, control=None, model=self.model)

    def train(self, start: int = 0) -> None:
        """From step `start` on, as if resumed there."""
        self.create_optimizer()
        self.say("on_train_begin", SimpleNamespace(global_step=start))
        size, parts = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        batches = [
            {key: torch.stack([row[key] for row in self.data[first : first + size]]) for key in self.data[0]}
            for first in range(0, len(self.data), size)
        ]
        assert len(batches) == parts
        for step in range(start + 1, self.args.num_train_epochs + 1):
            self.model.train()
            for batch in batches:
                loss = self.compute_loss(self.model, batch, num_items_in_batch=torch.tensor(size * parts))
                (loss if self.model_accepts_loss_kwargs else loss / parts).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.model.zero_grad()
            if step % self.args.save_steps == 0:
                (Path(self.args.output_dir) / f"checkpoint-{step}").mkdir()
                self.say("on_save", SimpleNamespace(global_step=step))


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the block leaves."""
    stand_in = ModuleType("transformers")
    for part in (Trainer, TrainerCallback, TrainingArguments):
        setattr(stand_in, part.__name__, part)
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    left: dict[str, Any] = {"__name__": "block"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "transformers", stand_in)
        exec(compile(code, "block", "exec"), left)  # noqa: S102
    return left


class Keeps(TrainerCallback):
    """The weights at each save; the real Trainer keeps and loads them by itself."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        pass

    def on_save(self, _args: Any, state: Any, model: Any, **_: Any) -> None:
        self.weights[state.global_step] = {name: x.clone() for name, x in model.state_dict().items()}


def test_evaluation_is_no_step(names):
    trainer = names["trainer"]
    trainer.model.eval()
    with torch.no_grad():
        loss, outputs = trainer.compute_loss(trainer.model, {"x": names["x"], "y": names["y"]}, return_outputs=True)
    assert float(loss) == float((torch.tensor([0.3, 0.7]) * outputs["losses"]).max())
    assert trainer.mol.step == EPOCHS


def test_the_callback_resumes_the_method(names, tmp_path):
    def make(save_steps: int) -> Any:
        torch.manual_seed(1)
        changed = {"output_dir": tmp_path, "num_train_epochs": 20, "save_steps": save_steps}
        arguments = TrainingArguments(**{**vars(names["arguments"]), **changed})
        trainer = names["PreferenceTrainer"](names["Model"](), arguments, train_dataset=names["data"])
        trainer.add_callback(names["Checkpoints"](trainer))
        return trainer

    whole, keeps = make(10), Keeps()
    whole.add_callback(keeps)
    whole.train()
    resumed = make(100)
    resumed.model.load_state_dict(keeps.weights[10])
    resumed.train(10)
    assert whole.mol.step == resumed.mol.step == 20
    ours, theirs = (trainer.mol.state_dict()["tensors"] for trainer in (resumed, whole))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
