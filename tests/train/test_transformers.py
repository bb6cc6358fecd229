"""`DomainTrainer` with the real Trainer: accumulation, logs, evaluation, the solution, checkpoints, kills, ranks."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq

pytest.importorskip("transformers", reason="needs the extra transformers")

from tests.train import with_trainer
from tests.train.with_trainer import NAMES, make
from transformers import BertConfig, BertForSequenceClassification, GPT2LMHeadModel, Trainer, TrainingArguments

from equipoise.train.transformers import DomainTrainer

SCRIPT = Path(__file__).with_name("with_trainer.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
DRAWN = {"draw": {"explore": 0.3}}


def weights(trainer: DomainTrainer) -> dict[str, torch.Tensor]:
    assert trainer.mol is not None
    return {name: p.detach().clone() for name, p in trainer.mol.model.named_parameters()}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# Losses --------------------------------------------------------------------------------------------
def test_accumulated_steps_are_those_of_one_large_batch(tmp_path):
    """Rows have from 4 to 10 tokens: means over all tokens of the step, not means of means."""
    common: dict[str, Any] = {"dropout": 0.0, "max_steps": 6, "save_strategy": "no"}
    whole = make(tmp_path, per_device_train_batch_size=24, **common)
    parts = make(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=6, **common)
    whole.train()
    parts.train()
    for name, p in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], p, rtol=1e-4, atol=1e-5)
    assert whole.mol is not None
    assert parts.mol is not None
    torch.testing.assert_close(parts.mol.duals, whole.mol.duals, rtol=1e-5, atol=1e-6)


def test_a_step_is_that_of_a_plain_loop(tmp_path):
    trainer = make(tmp_path, dropout=0.0, max_steps=1, save_strategy="no", max_grad_norm=0.0, optim="sgd")
    trainer.train()
    plain = with_trainer.model(0.0)
    optimizer = torch.optim.SGD(plain.parameters(), lr=3e-3)
    mol = eq.MultiObjective(plain, optimizer, dict.fromkeys(NAMES, 1 / 3), **with_trainer.METHOD)
    other = make(tmp_path, dropout=0.0, max_steps=1, save_strategy="no")
    batch = next(iter(other.get_train_dataloader()))
    f, n = eq.token_losses(plain(batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:], batch["domain"], 3)
    mol(f, n).backward()
    optimizer.step()
    plain.load_state_dict(mol.solution())
    for name, p in plain.named_parameters():
        torch.testing.assert_close(weights(trainer)[name], p.detach(), rtol=1e-6, atol=1e-7)


def test_steps_with_a_limit_are_those_of_a_plain_loop(tmp_path):
    """The limit is on the first domain, which a MultiObjective has last."""
    changes: dict[str, Any] = {"dropout": 0.0, "max_steps": 4, "save_strategy": "no", "max_grad_norm": 0.0}
    limited = {"limits": {"small": 1.5}, "method": None}
    trainer = make(tmp_path, optim="sgd", learning_rate=0.5, logging_steps=1, trainer=limited, **changes)
    trainer.train()
    plain = with_trainer.model(0.0)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    method = eq.default(steps=4).weighting, eq.Average(power=8)
    mol = eq.MultiObjective(plain, optimizer, {"large": 0.5, "odd": 0.5}, limits={"small": 1.5}, method=method)
    for batch in itertools.islice(make(tmp_path, trainer=limited, **changes).get_train_dataloader(), 4):
        logits = plain(batch["input_ids"]).logits[:, :-1]
        f, n = eq.token_losses(logits, batch["labels"][:, 1:], batch["domain"], 3)
        mol(dict(zip(NAMES, f, strict=True)), dict(zip(NAMES, n.tolist(), strict=True))).backward()
        optimizer.step()
        optimizer.zero_grad()
    plain.load_state_dict(mol.solution())
    for name, p in plain.named_parameters():
        torch.testing.assert_close(weights(trainer)[name], p.detach(), rtol=1e-5, atol=1e-6)
    log = next(log for log in reversed(trainer.state.log_history) if "loss" in log)
    assert log["multiplier/small"] == pytest.approx(mol.metrics()["multiplier/small"]) != 0.0
    assert log["violation/small"] == pytest.approx(log["loss/small"] / 1.5 - 1.0)


def test_limits_hold_where_batches_are_drawn(tmp_path):
    data = with_trainer.rows()
    limited = {"draw": True, "limits": {"small": (1.0, 1.6)}, "method": None, "eval_dataset": data}
    trainer = make(
        tmp_path,
        dropout=0.0,
        max_steps=200,
        learning_rate=1e-2,
        save_strategy="no",
        trainer={"domains": NAMES, **limited},
    )
    trainer.train()
    metrics = trainer.evaluate()
    assert 0.9 < metrics["eval_loss/small"] < 1.7  # from 2.8
    assert max(metrics["eval_loss/large"], metrics["eval_loss/odd"]) < 0.5
    assert trainer.mol is not None
    found = trainer.mol.metrics()
    by = trainer._drawn_by(trainer.mol)
    assert isinstance(by, torch.Tensor)
    assert by.tolist() == [abs(found[f"coefficient/{name}"]) for name in NAMES]


def test_batches_are_drawn_by_the_size_of_a_negative_coefficient(tmp_path):
    """The lower bound binds: all domains get better, and the limited one may not."""
    limited = {"draw": True, "limits": {"small": (2.6, 3.5)}, "method": None}
    trainer = make(tmp_path, dropout=0.0, max_steps=20, learning_rate=1e-2, save_strategy="no", trainer=limited)
    trainer.train()
    assert trainer.mol is not None
    assert trainer.mol.metrics()["coefficient/small"] < 0
    by = trainer._drawn_by(trainer.mol)
    assert isinstance(by, torch.Tensor)
    assert by[0] > 0


def test_copies_in_a_folder(tmp_path):
    """The check of the settings at the start leaves the folder to the run."""
    store = tmp_path / "copies"
    trainer = make(tmp_path, max_steps=2, save_strategy="no", trainer={"settings": {"store": store}})
    assert not store.exists()
    trainer.train()
    assert trainer.mol is not None
    assert trainer.mol.recorded == 2
    assert (store / "slots.json").is_file()


def test_packed_rows_have_a_domain_for_every_token(tmp_path):
    data = with_trainer.rows()
    names = [row.pop("domain") for row in data]
    packed = [{**row, "domain": [NAMES.index(name)] * 4 + [2] * 4} for row, name in zip(data, names, strict=True)]
    trainer = make(tmp_path, max_steps=3, save_strategy="no", trainer={"train_dataset": packed, "eval_dataset": packed})
    rule = "lists of domains must have an entry for every token with a label, and rows be padded on the right"
    with pytest.raises(ValueError, match=f"{rule}; found 8 entries, and [12] labels after them"):
        trainer.train()
    for row in packed:
        row["labels"][8:] = [-100, -100]
    trainer = make(tmp_path, max_steps=3, save_strategy="no", trainer={"train_dataset": packed, "eval_dataset": packed})
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["domain"].shape == batch["labels"].shape
    assert set(batch["domain"][:, 8:].flatten().tolist()) == {-100}
    trainer.train()
    assert {f"eval_loss/{name}" for name in NAMES} <= trainer.evaluate().keys()


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_packed_rows_take_names_and_numbers(tmp_path, kind):
    data = [{**row, "domain": kind([k % 3, *[0] * 9])} for k, row in enumerate(with_trainer.rows())]
    trainer = make(tmp_path, trainer={"train_dataset": data})
    expected = trainer.data_collator(data[:4])["domain"]
    assert expected[:, 0].tolist() == [0, 1, 2, 0]
    for row in data:
        row["domain"] = [NAMES[number] for number in row["domain"]]
    assert torch.equal(trainer.data_collator(data[:4])["domain"], expected)


def test_a_classifier_has_losses_by_sample(tmp_path):
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=16, max_position_embeddings=10, **sizes))
    data = [{"input_ids": [k % 5, k % 7], "label": k % 2, "domain": k % 3} for k in range(60)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", logging_steps=1,
        gradient_accumulation_steps=2, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = DomainTrainer(model, arguments, train_dataset=data, domains=["a", "b", "c"], draw=True)
    trainer.train()
    assert {"loss/a", "lambda/b", "q/c"} <= trainer.state.log_history[0].keys()
    assert trainer.state.global_step == 4


# Logs, evaluation, the solution --------------------------------------------------------------------
def test_logs_have_losses_and_lambda_by_domain(tmp_path):
    trainer = make(tmp_path, trainer=DRAWN, save_strategy="no")
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 4
    for log in logs:
        assert sum(log[f"lambda/{name}"] for name in NAMES) == pytest.approx(1.0)
        assert sum(log[f"q/{name}"] for name in NAMES) == pytest.approx(1.0)
        assert log["tch"] == pytest.approx(max(log[f"loss/{name}"] for name in NAMES) / 3)


def test_evaluation_and_what_is_saved_have_the_solution(tmp_path):
    seen: list[Any] = []

    class Looks(DomainTrainer):
        def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
            before = weights(self)
            output = super().evaluation_loop(*args, **kwargs)
            assert equal(before, weights(self))
            seen.append(output.metrics)
            return output

    trainer = make(tmp_path / "run", max_steps=10, eval_strategy="steps", eval_steps=10, save_steps=10)
    trainer.__class__ = Looks
    trainer.train()
    assert trainer.mol is not None
    answer = trainer.mol.solution()
    held = weights(trainer)
    assert all(torch.equal(held[name], answer[name]) for name in held)  # after training
    trainer.save_model(str(tmp_path / "saved"))
    for folder in (tmp_path / "saved", tmp_path / "run" / "checkpoint-10"):
        loaded = GPT2LMHeadModel.from_pretrained(folder)
        assert all(torch.equal(p, answer[name]) for name, p in loaded.named_parameters())
    training = eq.train.load(tmp_path / "run" / "checkpoint-10" / "equipoise.pt")["weights"]
    assert not torch.equal(training["lm_head.weight"], answer["lm_head.weight"])
    after = trainer.evaluate()
    for name in ("eval_worst", *(f"eval_loss/{name}" for name in NAMES)):
        assert seen[0][name] == pytest.approx(after[name], rel=1e-6)  # while it trained, and afterwards
    assert after["eval_worst"] == max(after[f"eval_loss/{name}"] for name in NAMES)


def test_the_best_model_is_judged_by_its_worst_domain(tmp_path):
    best: dict[str, Any] = {
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_worst",
        "greater_is_better": False,
    }
    trainer = make(tmp_path, max_steps=20, eval_strategy="steps", eval_steps=5, **best)
    trainer.train()
    found = {log["step"]: log["eval_worst"] for log in trainer.state.log_history if "eval_worst" in log}
    assert trainer.state.best_metric == min(found.values())
    assert trainer.evaluate()["eval_worst"] == pytest.approx(min(found.values()), rel=1e-6)


def test_half_precision(tmp_path):
    trainer = make(tmp_path, bf16=True, max_steps=4, gradient_accumulation_steps=2, save_strategy="no", trainer=DRAWN)
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.mol is not None
    assert trainer.mol.recorded == 4


# Checkpoints ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("trainer", [{}, DRAWN, {**DRAWN, "limits": {"small": 2.0}, "method": None}])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path, trainer):
    def go(**changes: Any) -> DomainTrainer:
        return make(tmp_path, trainer=trainer, gradient_accumulation_steps=2, dataloader_num_workers=1, **changes)

    whole = go()  # an epoch has 9 steps
    whole.train()
    resumed = go()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-15"))
    assert equal(weights(whole), weights(resumed))
    assert whole.mol is not None
    assert resumed.mol is not None
    ours, theirs = (trainer.mol.state_dict()["tensors"] for trainer in (resumed, whole))  # type: ignore[union-attr]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("limits", [None, {"small": 2.0}])
def test_the_default_knows_the_length_of_the_run(tmp_path, limits):
    """A third of it; a resumed run keeps the number of steps that it began with."""

    def go(steps: int, epochs: float = 3.0, **resume: Any) -> DomainTrainer:
        settings = {"method": None, "limits": limits}
        trainer = make(tmp_path, max_steps=steps, num_train_epochs=epochs, trainer=settings)
        trainer.train(**resume)
        return trainer

    def youth(trainer: DomainTrainer) -> Any:
        assert trainer.mol is not None
        weighting: Any = trainer.mol.weighting
        return (weighting if limits is None else weighting.among).youth

    assert youth(go(6)) == 2.0
    resumed = go(9, resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert youth(resumed) == 2.0
    assert resumed.mol is not None
    assert resumed.mol.step == 9
    assert youth(go(-1, epochs=1.0)) == pytest.approx(17 / 3)  # 102 rows, 6 at a time
    usual = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5], limits=None if limits is None else [1.0])
    assert resumed.mol.conversion == usual.conversion
    named = make(tmp_path, max_steps=1, trainer={"method": "equipoise"})
    named.train()
    assert named.mol is not None
    assert named.mol.weighting == eq.default().weighting


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_run_that_is_killed_goes_on_as_if_it_were_not(tmp_path):
    script = [sys.executable, str(SCRIPT)]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([*script, str(killed), "2000", "draw"], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (killed / "checkpoint-10" / "trainer_state.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = max(int(p.name.split("-")[1]) for p in killed.glob("checkpoint-*"))
    # One more, incomplete.
    broken = killed / f"checkpoint-{last + 5}"
    broken.mkdir()
    (broken / "trainer_state.json").write_text('{"global_st')
    steps = last + 15
    subprocess.run([*script, str(whole), str(steps), "draw"], env=ENVIRONMENT, capture_output=True, check=True)
    run = subprocess.run(
        [*script, str(killed), str(steps), "draw", "resume"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"checkpoint-{last + 5} is incomplete and is skipped" in run.stderr
    ours, theirs = (torch.load(folder / "found-0.pt") for folder in (killed, whole))
    assert ours["step"] == theirs["step"] == steps
    assert torch.equal(ours["lambda"], theirs["lambda"])
    assert equal(ours["weights"], theirs["weights"])


@pytest.mark.parametrize("draw", [["draw"], pytest.param([], marks=pytest.mark.slow)])
def test_two_processes_under_torchrun_are_one_with_twice_the_batch(tmp_path, draw):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    two, one = tmp_path / "two", tmp_path / "one"
    for command, folder in (([*torchrun, str(SCRIPT)], two), ([sys.executable, str(SCRIPT)], one)):
        arguments = [*command, str(folder), "6", "still", *draw]
        done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    first, second, single = (torch.load(p) for p in (two / "found-0.pt", two / "found-1.pt", one / "found-0.pt"))
    assert torch.equal(first["lambda"], second["lambda"])
    assert equal(first["weights"], second["weights"])
    if draw:  # the stock loader gives the ranks other rows than one process has
        torch.testing.assert_close(first["lambda"], single["lambda"], rtol=1e-4, atol=1e-5)
        for name, p in single["weights"].items():
            torch.testing.assert_close(first["weights"][name], p, rtol=1e-3, atol=1e-4)


# Bad input -----------------------------------------------------------------------------------------
def with_domains(domain: Any) -> list[dict[str, Any]]:
    """Training data whose last row has this domain."""
    data = with_trainer.rows()
    return [*data[:-1], {**data[-1], "domain": domain}]


class Arrow:
    """As the data sets of the package datasets: columns, and rows that a transform makes."""

    def __init__(self, data: list[dict[str, Any]], *, plain: bool = False) -> None:
        self.data, self.plain = data, plain

    column_names = ("input_ids", "labels", "domain")

    def with_format(self, kind: None) -> "Arrow":
        assert kind is None
        return Arrow(self.data, plain=True)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            assert self.plain, "the transform would make every row"
            return [row[key] for row in self.data]
        return self.data[key]


AMONG = r"domains must be among \['small', 'large', 'odd'\]"


@pytest.mark.parametrize("draw", [False, {"explore": 0.3}])
@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"domains": ["small", "large"]}, r"domains must be among \['small', 'large'\]; found odd"),
        ({"domains": [*NAMES, "none"]}, r"train_dataset must have rows of every domain: .*; found none of \['none'\]"),
        ({"train_dataset": Arrow(with_trainer.rows()), "domains": [*NAMES, "none"]}, r"found none of \['none'\]"),
        (
            {"column": "language"},
            r"rows must have the column 'language': give column=; found \['input_ids', 'labels', 'domain'\]",
        ),
        ({"train_dataset": with_domains(None)}, rf"{AMONG}, or lie in 0\.\.2, in every row; found None"),
        ({"train_dataset": with_domains(float("nan"))}, rf"{AMONG}, or lie in 0\.\.2, in every row; found nan"),
        ({"train_dataset": with_domains(3)}, rf"{AMONG}, or lie in 0\.\.2, in every row; found 3"),
        ({"train_dataset": with_domains(["small"])}, "rows must all have a list of domains, or none; found both"),
    ],
)
def test_bad_domains_are_named(tmp_path, trainer, message, draw):
    for calls in (1, 2):
        with pytest.raises(ValueError, match=message):
            make(tmp_path, max_steps=1, gradient_accumulation_steps=calls, trainer={"draw": draw, **trainer}).train()


@pytest.mark.parametrize("of", [list, Arrow])
def test_batches_are_not_drawn_from_rows_of_several_domains(tmp_path, of):
    data = of([{**row, "domain": [0] * 5 + [1] * 5} for row in with_trainer.rows()])
    with pytest.raises(ValueError, match="draw must be False for rows with a list of domains: to draw by λ, pack each"):
        make(tmp_path, trainer={"train_dataset": data, **DRAWN}).train()


def test_bad_draws_are_named(tmp_path):
    with pytest.raises(ValueError, match="repeats must leave every domain"):
        make(tmp_path, trainer={"draw": {"repeats": 0.1}}).train()
    rule = "raise batch_size or accumulate; found 2 .* places. batch_size is per_device_train_batch_size, accumulate is"
    with pytest.raises(ValueError, match=rule):
        make(tmp_path, trainer=DRAWN, per_device_train_batch_size=2).train()


def test_domains_of_tokens_are_named(tmp_path):
    trainer = make(tmp_path)
    one, two = with_trainer.rows()[:2]
    for wrong in ("none", None):
        with pytest.raises(ValueError, match=rf"{AMONG}.*; found {wrong}"):
            trainer.data_collator([{**one, "domain": ["small"] * 9 + [wrong]}])
    with pytest.raises(
        ValueError, match=r"rows must all have a list of domains, or one of .*; found 'odd' beside a list"
    ):
        trainer.data_collator([{**one, "domain": [0] * 10}, {**two, "domain": "odd"}])


def test_evaluation_without_domains_or_labels_is_reported(tmp_path):
    bare = [{key: x for key, x in row.items() if key != "domain"} for row in with_trainer.rows()]
    rule = "evaluation data must have the column 'domain' for losses by domain; found"
    trainer = make(tmp_path, trainer={"eval_dataset": bare})
    with pytest.warns(UserWarning, match=rf"{rule} \['input_ids', 'labels'\]"):
        assert "eval_loss" in trainer.evaluate()
    assert "eval_worst" not in trainer.evaluate()  # and no second warning, which would be an error
    few = [row for row in with_trainer.rows() if row["domain"] != "odd"]
    trainer = make(tmp_path, trainer={"eval_dataset": few})
    with pytest.warns(UserWarning, match=r"must have labels of every domain for eval_worst; found none of \['odd'\]"):
        found = trainer.evaluate()
    assert trainer.evaluate().keys() == found.keys()  # and no second warning
    assert "eval_loss/odd" not in found
    assert found["eval_worst"] == max(found["eval_loss/small"], found["eval_loss/large"])
    empty = [{**row, "labels": [-100] * 10} for row in with_trainer.rows()]
    with pytest.raises(ValueError, match="evaluation data must have labels other than -100; found none"):
        make(tmp_path, trainer={"eval_dataset": empty}).evaluate()


@pytest.mark.parametrize("changes", [{"trainer": DRAWN}, {"num_train_epochs": 2, "max_steps": -1}])
def test_a_domain_without_labels_is_reported_once(tmp_path, changes):
    data = with_trainer.rows()
    for row in data:
        row["labels"] = [-100] * 10 if row["domain"] == "odd" else row["labels"]
    trainer = make(
        tmp_path, save_strategy="no", **{**changes, "trainer": {"train_dataset": data, **changes.get("trainer", {})}}
    )
    rule = "steps must have labels of every domain"
    with pytest.warns(
        UserWarning, match=rf"{rule}; found none of \['odd'\]\. Either all their labels are -100"
    ) as said:
        trainer.train()
    assert len([one for one in said if rule in str(one.message)]) == 1


def test_bad_settings_are_named_at_once(tmp_path):
    with pytest.raises(ValueError, match="domains must be different names"):
        make(tmp_path, trainer={"domains": ["a", "a"]})
    with pytest.raises(ValueError, match="preference must be non-negative and sum to 1"):
        make(tmp_path, trainer={"domains": {"small": 1.0, "large": 1.0, "odd": 1.0}})


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (
            {"settings": {"limits": {"odd": 1.0}}},
            r"limits must be an argument of their own: DomainTrainer\(\.\.\., limits=\)",
        ),
        (
            {"limits": {"other": 1.0}},
            r"limits must be of domains, and leave one of \['small', .* without; found \['other'\]",
        ),
        ({"limits": dict.fromkeys(NAMES, 1.0)}, "limits must be of domains, and leave one of"),
        (
            {"domains": {"small": 0.5, "large": 0.3, "odd": 0.2}, "limits": {"odd": 1.0}},
            r"domains with a limit must have the weight 0; found \{'odd': 0\.2\}",
        ),
    ],
)
def test_bad_limits_are_named(tmp_path, trainer, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, trainer={"method": None, **trainer})


def test_losses_of_the_stock_trainer_are_refused(tmp_path):
    rule = "must be None: override domain_losses for another loss; found <function weights"
    with pytest.raises(ValueError, match=f"compute_loss_func {rule}"):
        make(tmp_path, trainer={"compute_loss_func": weights})
    with pytest.raises(ValueError, match=r"label_smoothing_factor must be 0: override domain_losses .*; found 0\.1"):
        make(tmp_path, label_smoothing_factor=0.1)


def test_a_checkpoint_of_another_run_is_named(tmp_path):
    make(tmp_path, max_steps=5).train()
    rule = "draw must be False: the run of the checkpoint used the stock loader; found drawn batches in this run"
    with pytest.raises(ValueError, match=rule):
        make(tmp_path, trainer=DRAWN).train(resume_from_checkpoint=True)
    make(tmp_path, max_steps=5, trainer=DRAWN).train()
    rule = "draw must be True or its settings: the run of the checkpoint drew batches by λ; found False"
    with pytest.raises(ValueError, match=rule):
        make(tmp_path).train(resume_from_checkpoint=True)
    found = "batch_size must be 3; found 6 in the checkpoint, steps must be 34; found 17 in the checkpoint"
    with pytest.raises(
        eq.StateMismatchError, match=rf"{found}\. batch_size is per_device_train_batch_size, .* steps, "
    ):
        make(tmp_path, trainer=DRAWN, per_device_train_batch_size=3).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_another_trainer_is_named(tmp_path):
    stock = make(tmp_path / "stock", max_steps=5)
    Trainer(stock.model, stock.args, train_dataset=stock.train_dataset).train()
    why = "those of other Trainers and of save_only_model=True have none; to start from its weights, load the model"
    with pytest.raises(
        ValueError, match=rf"checkpoint must have the file equipoise\.pt: {why} .*; found .*checkpoint-5"
    ):
        make(tmp_path / "stock").train(resume_from_checkpoint=str(tmp_path / "stock" / "checkpoint-5"))
    with (
        pytest.raises(ValueError, match=rf"{why} .*; found 0 incomplete, 1 without equipoise\.pt"),
        pytest.warns(UserWarning, match=r"checkpoint-5 has no file equipoise\.pt and is skipped"),
    ):
        make(tmp_path / "stock").train(resume_from_checkpoint=True)
    (tmp_path / "stock" / "checkpoint-5" / "trainer_state.json").unlink()
    with (
        pytest.raises(ValueError, match=r"with the file equipoise\.pt; found 1 incomplete, 0 without equipoise\.pt"),
        pytest.warns(UserWarning, match="checkpoint-5 is incomplete and is skipped"),
    ):
        make(tmp_path / "stock").train(resume_from_checkpoint=True)
