"""The losses of Hugging Face models by domain: which loss a model has, and which of its labels count.

Needs the extra `transformers`; only `equipoise.train.transformers` imports this module.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss, ForSequenceClassificationLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import unwrap_peft_model

from equipoise.errors import require
from equipoise.train.groups import group_losses, weigh_gradient
from equipoise.train.language import count_tokens, token_losses

__all__ = ["ModelLosses"]

IN_PLACE = ("ForMaskedLM", "ForTokenClassification")
"""Loss types with a label for every token itself."""
CAUSAL = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()} - {"XLMWithLMHeadModel", "XLNetLMHeadModel"}
"""Classes of causal language models; transformers also lists these two, which do not shift their labels."""
UNKNOWN = (
    "a model with logits per token must be a causal or masked language model or a token classifier: set "
    'model.loss_type to "ForCausalLM" for labels of the next token or to "ForTokenClassification" for labels of the '
    "token itself, or override domain_losses"
)
"""The rule for models that do not say what their labels belong to."""


class ModelLosses:
    """The loss that a model has in transformers, per token or per sample, averaged by domain.

    - Causal language models: cross-entropy of the next token.
    - Masked language models, token classifiers, and encoder-decoders that generate text: cross-entropy of the token
      itself.
    - Sequence classifiers, by `config.problem_type`: cross-entropy, binary cross-entropy averaged over the labels, or
      squared error. If it is None, the labels decide, as in transformers.

    Where the loss is a cross-entropy, tokens and samples with the label −100 do not count.

    Args:
        model: The model; its class, or its `loss_type`, says which loss it has.
    """

    def __init__(self, model: nn.Module) -> None:
        plain: Any = unwrap_peft_model(model)  # type: ignore[no-untyped-call]
        self.name, self.config, self.loss_type = type(plain).__name__, getattr(plain, "config", None), _loss_type(plain)
        causal = LOSS_MAPPING.get(self.loss_type or "ForCausalLM") is ForCausalLMLoss
        self.generates = causal and bool(getattr(self.config, "is_encoder_decoder", False))
        """Whether it is an encoder-decoder that generates text."""
        self.shifts = causal and not self.generates
        """Whether the logits of a token are compared with the label of the next."""

    def check(self, inputs: Collection[str]) -> None:
        """Raise ValueError if inputs are missing that transformers makes from the labels, which the model does not get.

        Args:
            inputs: The names of the model's inputs.
        """
        complete = not self.generates or "decoder_input_ids" in inputs
        remedy = "DataCollatorForSeq2Seq(tokenizer, model=model) adds them"
        require(complete, f"inputs of {self.name} must have decoder_input_ids: {remedy}", lambda: sorted(inputs))

    def means(
        self, logits: Tensor, labels: Tensor, domains: Tensor, m: int, *, weights: Tensor | None, share: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of every domain and its tokens or samples with a label, (m,) both; see `domain_losses`."""
        if logits.ndim == 3:
            known = self.generates or self.loss_type in IN_PLACE or (self.shifts and self.loss_type is not None)
            require(known, UNKNOWN, f"{self.name} with loss_type {self.loss_type}")
            logits = logits[:, :-1] if self.shifts else logits
            return token_losses(logits, *self._aligned(labels, domains), m, weights=weights, share=share)
        rule = "logits must have shape (n, t, classes) or (n, classes): override domain_losses for others"
        require(logits.ndim == 2, rule, lambda: tuple(logits.shape))
        problem = self._problem(labels)
        if problem == "single_label_classification":
            labels = labels.flatten()
            require(labels.shape == logits.shape[:1], "labels must be one number per row, (n,)", tuple(labels.shape))
            each = logits.unsqueeze(1), labels.unsqueeze(1)
            return token_losses(*each, domains, m, weights=weights, share=share)
        rule = f"labels must have the shape of the logits, {tuple(logits.shape)}, for {problem}"
        require(labels.numel() == logits.numel(), rule, lambda: tuple(labels.shape))
        wide, wanted = logits.float(), labels.view_as(logits).float()
        if problem == "regression":
            values = (wide - wanted).square()
        else:
            values = binary_cross_entropy_with_logits(wide, wanted, reduction="none")
        losses, counts = group_losses(values.mean(1), domains, m, weights=weights)
        return losses if share is None else weigh_gradient(losses, share), counts

    def count(self, labels: Tensor, domains: Tensor, m: int) -> Tensor:
        """The tokens or samples with a label of every domain, as `means` counts them, (m,)."""
        of_rows = labels.ndim == 1 or LOSS_MAPPING.get(self.loss_type or "") is ForSequenceClassificationLoss
        if not of_rows and not labels.is_floating_point():
            return count_tokens(*self._aligned(labels, domains), m)
        if self._problem(labels) != "single_label_classification":  # no label is left out
            labels = torch.zeros(len(labels), dtype=torch.int64, device=labels.device)
        return count_tokens(labels.view(-1, 1), domains, m)

    def _aligned(self, labels: Tensor, domains: Tensor) -> tuple[Tensor, Tensor]:
        """Labels, and domains of rows or tokens, at the positions of the logits that are compared with them."""
        first = int(self.shifts)
        return labels[:, first:], domains if domains.ndim == 1 else domains[:, first:]

    def _problem(self, labels: Tensor) -> str:
        """The problem of a sequence classifier, as transformers decides it."""
        given = getattr(self.config, "problem_type", None)
        if given is not None:
            return str(given)
        if getattr(self.config, "num_labels", None) == 1 or (labels.is_floating_point() and labels.ndim == 1):
            return "regression"
        return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def _loss_type(model: nn.Module) -> str | None:
    """The loss type in transformers; for a subclass with a name of its own, that of the class it is made from."""
    given = getattr(model, "loss_type", None)
    if given is not None:
        return str(given)
    for name in (kind.__name__ for kind in type(model).__mro__):
        found = "ForCausalLM" if name in CAUSAL else next((key for key in LOSS_MAPPING if key in name), None)
        if found is not None:
            return found
    return None
