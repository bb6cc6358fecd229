"""`DomainTrainer` has the losses that transformers has, for every kind of model and label."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq

pytest.importorskip("transformers", reason="needs the extra transformers")

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    XLNetConfig,
    XLNetLMHeadModel,
)

from equipoise.train.model_losses import ModelLosses
from equipoise.train.transformers import DomainTrainer

SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
BERT: dict[str, Any] = {**SIZES, "vocab_size": 16, "max_position_embeddings": 8}
GPT2: dict[str, Any] = {"vocab_size": 16, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
T5: dict[str, Any] = {"vocab_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
T5["decoder_start_token_id"] = 0
ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
TOKENS = torch.randint(16, (6, 5), generator=torch.Generator().manual_seed(0))
DOMAINS = torch.tensor([0, 1, 1, 0, 1, 1])


class Tagger(BertForTokenClassification):
    """A name that does not say which loss it has."""


class Reader(GPT2LMHeadModel):
    """As this one."""


def per_token(classes: int) -> Tensor:
    labels = TOKENS % classes
    return labels.masked_fill(torch.rand(TOKENS.shape, generator=torch.Generator().manual_seed(1)) < 0.3, -100)


def bert(kind: Any, **settings: Any) -> nn.Module:
    model: nn.Module = kind(BertConfig(**BERT, **settings))
    return model


MODELS: dict[str, tuple[Any, Tensor]] = {
    "causal": (lambda: GPT2LMHeadModel(GPT2Config(**GPT2, **ENDS)), per_token(16)),
    "a subclass of it": (lambda: Reader(GPT2Config(**GPT2, **ENDS)), per_token(16)),
    "ForCausalLM": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=16)), per_token(16)),
    "masked": (lambda: bert(BertForMaskedLM), per_token(16)),
    "token classes": (lambda: bert(BertForTokenClassification, num_labels=3), per_token(3)),
    "a subclass with a name of its own": (lambda: bert(Tagger, num_labels=3), per_token(3)),
    "one class": (lambda: bert(BertForSequenceClassification), torch.tensor([0, 1, -100, -100, 1, 0])),
    "the last token's class": (
        lambda: GPT2ForSequenceClassification(GPT2Config(**GPT2, **ENDS)),
        torch.tensor([0, 1, -100, -100, 1, 0]),
    ),
    "several classes": (
        lambda: bert(BertForSequenceClassification, num_labels=3, problem_type="multi_label_classification"),
        (TOKENS[:, :3] % 2).float(),
    ),
    "several classes, by the labels": (
        lambda: bert(BertForSequenceClassification, num_labels=3),
        (TOKENS[:, :3] % 2).float(),
    ),
    "a number": (lambda: bert(BertForSequenceClassification, num_labels=1), TOKENS[:, 0] / 16),
    "numbers": (
        lambda: bert(BertForSequenceClassification, num_labels=3, problem_type="regression"),
        TOKENS[:, :3] / 16,
    ),
    "encoder-decoder": (
        lambda: T5ForConditionalGeneration(T5Config(**T5)),
        per_token(16),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_loss_is_that_of_the_model(name):
    """transformers computes the loss of a domain from the rows of this domain."""
    torch.manual_seed(0)
    make, labels = MODELS[name]
    model = make().eval()
    losses = ModelLosses(model)
    inputs = {"input_ids": TOKENS}
    if losses.generates:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    with torch.no_grad():
        found, counts = losses.means(model(**inputs).logits, labels, DOMAINS, 2, weights=None, share=None)
        for domain in range(2):
            own = domain == DOMAINS
            assert model(input_ids=TOKENS[own], labels=labels[own]).loss.item() == pytest.approx(found[domain].item())
    assert losses.count(labels, DOMAINS, 2).tolist() == counts.tolist()
    counted = labels[:, 1:] if losses.shifts else labels
    rows = counted.is_floating_point()  # numbers, and several classes: a loss per row
    each = torch.ones(6) if rows else (counted != -100).view(6, -1).sum(1)
    assert counts.tolist() == [each[domain == DOMAINS].sum() for domain in range(2)]


@pytest.mark.parametrize("name", ["token classes", "one class", "several classes", "a number"])
def test_gradients_take_weights_and_shares(name):
    make, labels = MODELS[name]
    losses = ModelLosses(make())
    kept = labels if labels.is_floating_point() else labels.clamp_min(0)
    shape = (6, 5, 3) if name == "token classes" else (6, {"a number": 1, "one class": 2}.get(name, 3))
    logits = torch.zeros(shape, requires_grad=True)
    weights, share = torch.arange(1.0, 7.0), torch.tensor([3.0, 0.5])

    def gradient(**factors: Any) -> Tensor:
        found, _ = losses.means(logits, kept, DOMAINS, 2, **{"weights": None, "share": None, **factors})
        return torch.autograd.grad(found.sum(), logits)[0]

    factors = (weights * share[DOMAINS]).view(6, *[1] * (logits.ndim - 1))
    torch.testing.assert_close(gradient(weights=weights, share=share), factors * gradient())


def test_a_model_that_does_not_say_what_its_labels_are_is_refused():
    rule = "model with logits per token must be a causal or masked language model or a token classifier: set"
    xlnet = XLNetLMHeadModel(XLNetConfig(vocab_size=16, d_model=8, n_layer=1, n_head=2, d_inner=8))
    for model, name in ((nn.Linear(1, 1), "Linear"), (xlnet, "XLNetLMHeadModel")):
        losses = ModelLosses(model)
        with pytest.raises(ValueError, match=f"{rule} model.loss_type .*; found {name} with loss_type None"):
            losses.means(torch.zeros(6, 5, 16), TOKENS, DOMAINS, 2, weights=None, share=None)
    named = nn.Linear(1, 1)
    for loss_type, expected in (("ForCausalLM", [8.0, 16.0]), ("ForTokenClassification", [10.0, 20.0])):
        named.loss_type = loss_type  # type: ignore[assignment]
        losses = ModelLosses(named)
        _, counts = losses.means(torch.zeros(6, 5, 16), TOKENS, DOMAINS, 2, weights=None, share=None)
        assert counts.tolist() == losses.count(TOKENS, DOMAINS, 2).tolist() == expected


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (
            (6, 3, 4, 4),
            (6, 4, 4),
            r"logits must have shape \(n, t, classes\) or \(n, classes\): .* \(6, 3, 4, 4\)",
        ),
        ((6, 3), (6, 3), r"labels must be one number per row, \(n,\); found \(18,\)"),
    ],
)
def test_other_shapes_are_refused(logits, labels, message):
    losses = ModelLosses(nn.Linear(1, 1))
    with pytest.raises(ValueError, match=message):
        losses.means(torch.zeros(logits), torch.ones(labels).long(), DOMAINS, 2, weights=None, share=None)
    rule = r"labels must have the shape of the logits, \(6, 3\), for multi_label_classification; found \(6, 4\)"
    with pytest.raises(ValueError, match=rule):
        losses.means(torch.zeros(6, 3), torch.zeros(6, 4), DOMAINS, 2, weights=None, share=None)


# With the Trainer ----------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own
def test_a_compiled_model_has_the_loss_of_the_model(tmp_path):
    compiled: Any = torch.compile(MODELS["causal"][0]())
    losses = DomainTrainer(compiled, arguments(tmp_path), domains=["a", "b"])._model_losses
    assert (losses.name, losses.loss_type, losses.shifts) == ("GPT2LMHeadModel", "ForCausalLM", True)


def arguments(folder: Any, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "max_steps": 2,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), dataloader_pin_memory=False, logging_steps=1, **{**settings, **changes})


def test_a_token_classifier_learns_as_with_the_stock_trainer(tmp_path):
    tokens = torch.randint(16, (64, 8), generator=torch.Generator().manual_seed(0))
    labels = (tokens > 7).long()
    plain = [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels, strict=True)]
    rows = [{**row, "domain": "ab"[k % 2]} for k, row in enumerate(plain)]
    run = arguments(tmp_path, max_steps=100, learning_rate=1e-2, logging_strategy="no")
    kinds: list[tuple[Any, Any, dict[str, Any]]] = [
        (Trainer, plain, {}),
        (DomainTrainer, rows, {"domains": ["a", "b"]}),
    ]
    for kind, data, settings in kinds:
        torch.manual_seed(0)
        model = BertForTokenClassification(BertConfig(**BERT))
        kind(model, run, train_dataset=data, **settings).train()
        assert (model.eval()(tokens).logits.argmax(-1) == labels).float().mean() == 1.0


def unlabelled() -> list[dict[str, Any]]:
    """A classifier's rows, most of them without a label in domain a."""
    labels = [-100 if k % 2 == 0 and k % 20 else (k // 2) % 2 for k in range(60)]
    return [{"input_ids": [k % 16, k % 7], "label": x, "domain": "ab"[k % 2]} for k, x in enumerate(labels)]


def test_rows_without_a_label_do_not_count(tmp_path):
    torch.manual_seed(0)
    model = bert(BertForSequenceClassification)
    data = unlabelled()
    both: dict[str, Any] = {"train_dataset": data, "eval_dataset": data}
    trainer = DomainTrainer(model, arguments(tmp_path), domains=["a", "b"], **both)
    metrics = trainer.evaluate()
    sums: dict[str, list[float]] = {"a": [], "b": []}
    for row in data:
        if row["label"] != -100:
            inputs = {"input_ids": torch.tensor([row["input_ids"]]), "labels": torch.tensor([row["label"]])}
            sums[row["domain"]].append(model(**inputs).loss.item())
    assert [len(found) for found in sums.values()] == [3, 30]
    for name, found in sums.items():
        assert metrics[f"eval_loss/{name}"] == pytest.approx(sum(found) / len(found), rel=1e-5)
    every = [*sums["a"], *sums["b"]]
    assert metrics["eval_loss"] == pytest.approx(sum(every) / len(every), rel=1e-5)


def test_accumulated_steps_of_a_classifier_are_those_of_one_large_batch(tmp_path):
    def go(**changes: Any) -> eq.MultiObjective:
        torch.manual_seed(0)
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model, run = bert(BertForSequenceClassification, **still), arguments(tmp_path, max_steps=4, **changes)
        trainer = DomainTrainer(model, run, train_dataset=unlabelled(), domains=["a", "b"], method="OMDeg-TCH")
        trainer.train()
        assert trainer.mol is not None
        return trainer.mol

    whole = go(per_device_train_batch_size=20)
    parts = go(per_device_train_batch_size=4, gradient_accumulation_steps=5)
    torch.testing.assert_close(parts.duals, whole.duals, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.solution(), whole.solution(), rtol=1e-4, atol=1e-5)


def test_an_encoder_decoder_needs_the_inputs_of_its_decoder(tmp_path):
    model = MODELS["encoder-decoder"][0]()
    rows = [{"input_ids": [1, 2, 3], "labels": [3, 2, 1], "domain": "ab"[k % 2]} for k in range(16)]
    rule = r"inputs of T5ForConditionalGeneration must have decoder_input_ids: DataCollatorForSeq2Seq\(tokenizer, model"
    with pytest.raises(ValueError, match=rule):
        DomainTrainer(model, arguments(tmp_path), train_dataset=rows, domains=["a", "b"]).train()
    rows = [{**row, "decoder_input_ids": [0, 3, 2]} for row in rows]
    trainer = DomainTrainer(model, arguments(tmp_path), train_dataset=rows, domains=["a", "b"])
    trainer.train()
    assert trainer.mol is not None
    assert trainer.mol.recorded == 2
