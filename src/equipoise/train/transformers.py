"""A Hugging Face Trainer with losses by domain, λ in the logs, batches drawn by λ, and the solution in checkpoints.

Needs the extra `transformers`; nothing else imports this module.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from equipoise.errors import StateMismatchError, require, warn
from equipoise.train.checkpoint import load, save
from equipoise.train.distributed import mean_losses
from equipoise.train.domains import DomainSampler, Draw, read_samples
from equipoise.train.inputs import Choice
from equipoise.train.language import IGNORED, step_shares
from equipoise.train.model_losses import ModelLosses
from equipoise.train.multi_objective import MultiObjective, check_settings
from equipoise.train.run_length import with_length
from equipoise.weighting.limits import Limit

__all__ = ["DomainTrainer"]

WEIGHT = "draw_weight"
"""The column with the weights of drawn samples."""
STATE = "equipoise.pt"
"""The checkpoint file with the states of method and sampler, and the weights that training resumes with."""
FINISHED = "trainer_state.json"
"""The file that the Trainer writes last."""
FOREIGN = (
    "those of other Trainers and of save_only_model=True have none; to start from its weights, load the model from it "
    "and train without resume_from_checkpoint"
)
"""Why a checkpoint has no state of a `DomainTrainer`, and what to do."""
ARGUMENTS = (
    "batch_size is per_device_train_batch_size, accumulate is gradient_accumulation_steps, world_size is the number of "
    "ranks, and steps, those of an epoch, follow from these and the data"
)
"""What settings of the sampler are called in the Trainer."""


class DomainTrainer(Trainer):
    """A `Trainer` for data of several domains: the mean loss of each is an objective.

    Language models and token classifiers have losses per token, sequence classifiers losses per sample, by
    `config.problem_type`: the model's own loss in transformers. Tokens and samples with the label −100 do not count.
    Override `domain_losses` for other losses. Gradient accumulation, bf16 and `torchrun` work as in the stock Trainer:
    means are over all tokens or samples of a step, on all ranks.

    - Logs have `loss/…` and `lambda/…` by domain, `tch` and `imbalance`; with `draw`, `q/…`; with `limits`,
      `violation/…`, `missed/…` and `multiplier/…`. Evaluation has `eval_loss/…` by domain and the largest of them as
      `eval_worst`, for `metric_for_best_model`.
    - Evaluation, `save_model`, checkpoints and the model after training have the solution's weights. The training
      weights are in a separate file: `train(resume_from_checkpoint=True)` resumes bit for bit from the last complete
      checkpoint.

    Args:
        *args: Arguments of the Trainer.
        domains: Their names, all with the same weight; or a mapping from names to weights, the preference.
        method: As in `MultiObjective`; by default `default(steps=...)` for the steps of this run. A resumed run keeps
            the number that it began with.
        column: The column of the data set with the domain of each row, by name or number; for packed rows, with a list
            of the domains of its tokens.
        draw: Whether to draw batches by λ; or settings of `DomainSampler` other than sizes and seed, such as
            `{"explore": 0.1, "repeats": 4}`.
        limits: Domains whose loss must stay below a number, or within a pair (least, most). They are not balanced; in a
            mapping `domains` their weight is 0.
        settings: Further arguments of `MultiObjective`.
        **kwargs: Arguments of the Trainer.

    Examples:
        >>> import tempfile
        >>> from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
        >>> from equipoise.train.transformers import DomainTrainer
        >>> sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
        >>> model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        >>> rows = [{"input_ids": [k % 3] * 8, "labels": [k % 3] * 8, "domain": "ab"[k % 2]} for k in range(8)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     arguments = TrainingArguments(folder, use_cpu=True, report_to=[], disable_tqdm=True)
        ...     trainer = DomainTrainer(model, arguments, train_dataset=rows, domains=["a", "b"], draw=True)
        ...     batch = next(iter(trainer.get_train_dataloader()))
        >>> batch["domain"].bincount().tolist()
        [4, 4]
    """

    def __init__(
        self,
        *args: Any,
        domains: Mapping[str, float] | Sequence[str],
        method: Choice = None,
        column: str = "domain",
        draw: bool | Mapping[str, Any] = False,
        limits: Mapping[str, Limit] | None = None,
        settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.domains = tuple(domains)
        require(len(set(self.domains)) == len(self.domains) >= 1, "domains must be different names", self.domains)
        limits = limits or {}
        free = [name for name in self.domains if name not in limits]
        known = set(limits) < set(self.domains)
        require(known, f"limits must be of domains, and leave one of {list(self.domains)} without", list(limits))
        preference = dict.fromkeys(free, 1 / len(free))
        if isinstance(domains, Mapping):
            weighed = {name: domains[name] for name in limits if domains[name] != 0}
            require(not weighed, "domains with a limit must have the weight 0", weighed)
            preference = {name: domains[name] for name in free}
        rule = "limits must be an argument of their own: DomainTrainer(..., limits=)"
        require("limits" not in (settings or {}), rule, "them in settings")
        self._settings: dict[str, Any] = {"preference": preference, "method": method, **(settings or {})}
        self._settings |= {"limits": dict(limits)} if limits else {}
        self._order = [self.domains.index(name) for name in (*free, *limits)] if limits else None
        """The domains in the order of a MultiObjective with limits, (m,)."""
        check_settings(self._settings)
        self.column, self._draw = column, dict(draw) if isinstance(draw, Mapping) else ({} if draw else None)
        self.mol: MultiObjective | None = None
        self.sampler: DomainSampler | None = None
        self._steps: int | None = None
        """The length of the run as the default method knows it; None: unknown."""
        self._shares: deque[Tensor] = deque()
        self._sums: Tensor | None = None
        """Losses and counts of an evaluation, (2, m)."""
        self._warned: set[str] = set()
        """What was said of the evaluation data."""
        super().__init__(*args, **kwargs)
        require(not self.is_deepspeed_enabled, "DeepSpeed must not be used: it has its own optimizer", "DeepSpeed")
        require(self.args.n_gpu <= 1, "several GPUs must be used by torchrun", f"{self.args.n_gpu} in one process")
        own = self.compute_loss_func
        rule = "compute_loss_func must be None: override domain_losses for another loss"
        require(own is None, rule, lambda: own)
        smoothing = self.args.label_smoothing_factor
        require(smoothing == 0, "label_smoothing_factor must be 0: override domain_losses for another loss", smoothing)
        # The Trainer then divides by the number of accumulated batches, and leaves the rest to `compute_loss`.
        self.model_accepts_loss_kwargs = False
        plain: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        self._model_losses = ModelLosses(plain)
        self.data_collator = _Collate(self.data_collator, column, self.domains)
        self.add_callback(_Steps(self))

    # Losses -----------------------------------------------------------------------------------

    def domain_losses(
        self,
        outputs: Any,  # noqa: ANN401
        labels: Tensor,
        domains: Tensor,
        weights: Tensor | None,
        share: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of every domain of a batch, differentiable, and its tokens or samples, (m,) both.

        Args:
            outputs: The outputs of the model; `logits` are (n, t, vocabulary), or (n, classes) for a classifier.
            labels: (n, t) or (n,); (n, classes) for a classifier with several labels per sample.
            domains: (n,), or (n, t) where rows are packed.
            weights: Factors of the rows' gradients, (n,), where batches are drawn by λ.
            share: Factors of the domains' gradients, (m,), where the calls of a step differ in tokens or samples.
        """
        losses = self._model_losses
        return losses.means(outputs["logits"], labels, domains, len(self.domains), weights=weights, share=share)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002
        num_items_in_batch: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """The scalar to differentiate; in evaluation, the mean over all tokens or samples."""
        if self.column not in inputs and not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._check_column(inputs)
        domains, weights, labels = (inputs.pop(key, None) for key in (self.column, WEIGHT, "labels"))
        require(labels is not None, "rows must have labels", lambda: sorted(inputs))
        self._model_losses.check(inputs)
        outputs = model(**inputs)
        share = self._shares.popleft() if model.training and self._shares else None
        f, n = self.domain_losses(outputs, labels, domains, weights, share)
        if model.training:
            assert self.mol is not None  # noqa: S101
            loss = self.mol(f, n) if self._order is None else self.mol(f[self._order], n[self._order])
        else:
            found = torch.stack([f * n, n]).detach().double()
            self._sums = found if self._sums is None else self._sums + found
            loss = (f * n).sum() / n.sum().clamp_min(1.0)
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:  # noqa: ANN401
        """The batches of a step, and the share of every domain's tokens or samples in each."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._shares.clear()
        labelled = all(getattr(batch.get("labels"), "ndim", 0) in {1, 2} for batch in batches)
        if len(batches) > 1 and self.sampler is None and labelled:
            self._check_column(batches[0])
            pairs = [(batch["labels"].to(device), batch[self.column].to(device)) for batch in batches]
            counts = [self._model_losses.count(*pair, len(self.domains)) for pair in pairs]
            self._shares.extend(step_shares(torch.stack(counts)))
        return batches, items

    def _check_column(self, batch: Mapping[str, Any]) -> None:
        columns = _columns(self.train_dataset) or sorted(batch)
        require(self.column in batch, f"rows must have the column {self.column!r}: give column=", columns)

    # The run ----------------------------------------------------------------------------------

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The optimizer, with the method attached to it."""
        made = super().create_optimizer(*args, **kwargs)
        self._attach(self.state.max_steps or None)
        return made

    def _attach(self, steps: int | None) -> None:
        """Attach the method of a run of so many steps to the optimizer."""
        if self.mol is not None:
            self.mol.close()
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # the Trainer wraps it
        model: Any = self.model
        self.mol, self._steps = MultiObjective(model, optimizer, **with_length(self._settings, steps)), steps
        if self.mol._run.presence is not None:
            self.mol._run.presence.explain = _explain_absent

    def get_train_dataloader(self) -> Any:  # noqa: ANN401
        """The stock loader, or batches drawn by λ."""
        data: Any = self.train_dataset
        found = _read_column(data, self.column)
        if self._draw is None:
            if found is not None:
                _numbers(found, self.domains)
            return super().get_train_dataloader()
        sized = data is not None and not isinstance(data, IterableDataset)
        rule = "train_dataset must have a length where batches are drawn; see DomainStreams"
        require(sized, rule, lambda: type(data))
        args = self.args
        numbers = _numbers(self._drawn_from(data) if found is None else found, self.domains)
        try:
            self.sampler = DomainSampler(
                numbers,
                self._train_batch_size,
                len(self.domains),
                accumulate=args.gradient_accumulation_steps,
                seed=args.seed if args.data_seed is None else args.data_seed,
                rank=args.process_index,
                world_size=args.world_size,
                **self._draw,
            )
        except ValueError as error:
            raise ValueError(f"{error}. {ARGUMENTS}") from None
        return DataLoader(
            _Rows(data, self.column),
            batch_sampler=self.sampler,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            generator=torch.Generator(),  # the global one, which checkpoints hold, is for the model
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            persistent_workers=args.dataloader_persistent_workers,
        )

    def _drawn_by(self, mol: MultiObjective) -> MultiObjective | Tensor:
        """The weights that batches are drawn by: the coefficients; with limits, their absolute values per domain."""
        if self._order is None:
            return mol
        sizes = mol._run.last_coefficients().abs()  # the coefficient of a lower bound is negative
        found = torch.empty_like(sizes)
        found[self._order] = sizes
        return found

    def _drawn_from(self, data: Any) -> list[Any]:  # noqa: ANN401
        """The domain of every row, read row by row."""
        found = []
        for row in data:
            self._check_column(row)
            rule = (
                "draw must be False for rows with a list of domains: to draw by λ, pack each row from one domain, and "
                "give its name in the column"
            )
            require(not _is_list(row[self.column]), rule, "a list of domains")
            found.append(row[self.column])
        return found

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: Any = self._signature_columns
        columns += [name for name in (self.column, WEIGHT) if name not in columns]

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        epochs, batches = super()._init_training_state(*args, **kwargs)
        return epochs, 0 if self.sampler is not None else batches  # a resumed sampler needs no skipping

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log losses, λ and probabilities of the domains besides the loss."""
        if self.mol is not None and self.is_in_train and "loss" in logs:
            metrics = self.mol.metrics()
            if self.sampler is not None:  # every drawn step has rows of every domain
                self._warn_of_absent()
            wanted = ("loss/", "lambda/", "violation/", "missed/", "multiplier/", "tch", "imbalance")
            logs |= {name: float(x) for name, x in metrics.items() if name.startswith(wanted)}
            if self.sampler is not None:
                q = self.sampler.probabilities.tolist()
                logs |= {f"q/{name}": x for name, x in zip(self.domains, q, strict=True)}
        super().log(logs, *args, **kwargs)

    def _warn_of_absent(self) -> None:
        """Warn once of domains without labels, when their rows should have been there."""
        assert self.mol is not None  # noqa: S101
        run = self.mol._run
        run.settle()
        if run.presence is not None:
            run.presence.warn_of_absent(run.losses)

    # The solution -----------------------------------------------------------------------------

    def _answer(self) -> AbstractContextManager[None]:
        """A context in which the model holds the solution instead of the training weights."""
        training = self.mol is not None and self.is_in_train and self.mol.recorded > 0
        return self.mol.solution_weights() if training and self.mol is not None else nullcontext()

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,  # noqa: FBT001
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate the solution, by domain too."""
        self._sums = None
        with self._answer():
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        if self._sums is not None:
            sums, counts = self._sums
            seen = mean_losses(sums / counts.clamp_min(1.0), counts, None)
            assert seen.mask is not None  # noqa: S101
            assert seen.counts is not None  # noqa: S101
            rows = zip(self.domains, seen.values.tolist(), seen.mask.tolist(), strict=True)
            present = {name: loss for name, loss, there in rows if there}
            require(len(present) > 0, f"evaluation data must have labels other than {IGNORED}", "none")
            # The Trainer's own mean weighs batches by their rows, whatever the number of labels.
            output.metrics[f"{metric_key_prefix}_loss"] = float(seen.values @ seen.counts / seen.counts.sum())
            output.metrics.update({f"{metric_key_prefix}_loss/{name}": loss for name, loss in present.items()})
            output.metrics[f"{metric_key_prefix}_worst"] = max(present.values())
            left_out = [name for name in self.domains if name not in present]
            if left_out:
                self._warn_once(
                    f"evaluation data must have labels of every domain for eval_worst; found none of {left_out}"
                )
        elif f"{metric_key_prefix}_loss" in (output.metrics or {}):
            found = f"evaluation data must have the column {self.column!r} for losses by domain; found"
            self._warn_once(f"{found} {_columns(dataloader.dataset) or 'a batch without it'}")
        return output

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the solution."""
        with self._answer():
            super().save_model(*args, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:  # noqa: ANN401
        if self.args.should_save and not self.args.save_only_model:
            assert self.mol is not None  # noqa: S101
            folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            sampler = None if self.sampler is None else self.sampler.state_dict()
            state = {"mol": self.mol.state_dict(), "sampler": sampler, "weights": self.mol.model.state_dict()}
            save({**state, "steps": self._steps}, folder / STATE)
        super()._save_checkpoint(model, trial)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, FBT001
        """As in the Trainer; `True` is the last complete checkpoint."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = _last_whole(Path(str(self.args.output_dir)))
        if isinstance(resume_from_checkpoint, str):
            there = (Path(resume_from_checkpoint) / STATE).is_file()
            require(there, f"checkpoint must have the file {STATE}: {FOREIGN}", resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            state = load(Path(checkpoint) / STATE, map_location="cpu")
            if state.get("steps") != self._steps:
                self._attach(state.get("steps"))
            assert self.mol is not None  # noqa: S101
            drawn = state["sampler"] is not None
            source = "drew batches by λ" if drawn else "used the stock loader"
            rule = f"draw must be {'True or its settings' if drawn else 'False'}: the run of the checkpoint {source}"
            require(drawn == (self.sampler is not None), rule, "False" if drawn else "drawn batches in this run")
            self.mol.model.load_state_dict(state["weights"])
            self.mol.load_state_dict(state["mol"])
            if self.sampler is not None:
                try:
                    self.sampler.load_state_dict(state["sampler"])
                except StateMismatchError as error:
                    raise StateMismatchError(f"{error}. {ARGUMENTS}") from None

    def _finish(self) -> None:
        """Leave the solution in the model, or the best one that the Trainer has loaded."""
        best = self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None
        assert self.mol is not None  # noqa: S101
        if self.mol.recorded > 0 and not best:
            self.mol.model.load_state_dict(self.mol.solution())
        self.mol.close()


def _explain_absent(never: list[str], steps: int) -> str:
    return (
        f"{steps} steps must have labels of every domain; found none of {never}. Either all their labels are "
        f"{IGNORED}, or they have no rows: mend the data, or leave them out of domains"
    )


class _Steps(TrainerCallback):
    """Hooks at the end of steps and of training."""

    def __init__(self, trainer: DomainTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        sampler, mol = self.trainer.sampler, self.trainer.mol
        if sampler is not None and mol is not None:
            sampler.follow(self.trainer._drawn_by(mol))

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if (self.trainer.state.epoch or 0.0) > 0.999:
            self.trainer._warn_of_absent()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.trainer._finish()


class _Rows(Dataset[dict[str, Any]]):
    """Rows with their domain and weight, for indices (number, draw)."""

    def __init__(self, data: Any, column: str) -> None:  # noqa: ANN401
        self.data, self.column = data, column

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: tuple[int, Draw]) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, batch: list[tuple[int, Draw]]) -> list[dict[str, Any]]:
        """A whole batch; read at once where the data set can do so."""
        rows = read_samples(self.data, [number for number, _ in batch])
        return [
            {**row, self.column: draw.domain, WEIGHT: draw.weight} for row, (_, draw) in zip(rows, batch, strict=True)
        ]


class _Collate:
    """Wraps a collator: makes tensors of the domain and weight columns, and passes the rest on."""

    def __init__(self, inner: Callable[[list[Any]], Any], column: str, domains: tuple[str, ...]) -> None:
        self.inner, self.column, self.domains = inner, column, domains

    def __call__(self, rows: list[Any]) -> Any:  # noqa: ANN401
        if not isinstance(rows[0], Mapping) or self.column not in rows[0]:
            return self.inner(rows)
        own = {self.column, WEIGHT}
        batch = self.inner([{key: x for key, x in row.items() if key not in own} for row in rows])
        given = [row.get(self.column) for row in rows]
        if _is_list(given[0]):
            require("labels" in batch, "rows must have labels", lambda: sorted(batch))
            batch[self.column] = _padded([_tokens(one, self.domains) for one in given], batch["labels"])
        else:
            batch[self.column] = torch.tensor([_number(name, self.domains) for name in given])
        if WEIGHT in rows[0]:
            batch[WEIGHT] = torch.tensor([row[WEIGHT] for row in rows], dtype=torch.float32)
        return batch


def _columns(data: Any) -> list[str] | None:  # noqa: ANN401
    """The columns of a list of rows, or of a data set that names them; None for others."""
    if isinstance(data, Sequence):
        return list(data[0]) if len(data) > 0 and isinstance(data[0], Mapping) else None
    return getattr(data, "column_names", None)


def _read_column(data: Any, column: str) -> list[Any] | None:  # noqa: ANN401
    """The domain of every row; None if rows are packed, or if every row would have to be computed to find out."""
    if not hasattr(data, "__len__") or column not in (_columns(data) or []):
        return None
    if isinstance(data, Sequence):
        return None if _is_list(data[0][column]) else [row.get(column) for row in data]
    plain = data.with_format(None) if hasattr(data, "with_format") else data  # without transforms of whole rows
    return None if len(plain) == 0 or _is_list(plain[0][column]) else list(plain[column])


def _is_list(given: Any) -> bool:  # noqa: ANN401
    """Whether these are the domains of a packed row's tokens."""
    return not isinstance(given, str) and (isinstance(given, Sequence) or getattr(given, "ndim", 0) > 0)


def _tokens(given: Any, domains: tuple[str, ...]) -> Tensor:  # noqa: ANN401
    """The domains of a row's tokens by number, (t,); tokens without a label may have any number."""
    rule = f"rows must all have a list of domains, or one of {list(domains)} each"
    require(_is_list(given), rule, lambda: f"{given!r} beside a list")
    each = given.tolist() if hasattr(given, "tolist") else list(given)
    known = {one: one if isinstance(one, int) else _number(one, domains) for one in dict.fromkeys(each)}
    return torch.tensor([known[one] for one in each])


def _padded(domains: list[Tensor], labels: Tensor) -> Tensor:
    """The domains of tokens, as long as the labels, (n, t)."""
    rule = "lists of domains must belong to labels per token, of shape (n, t)"
    require(labels.ndim == 2, rule, lambda: tuple(labels.shape))
    found = torch.full(labels.shape, IGNORED)
    for row, one, label in zip(found, domains, labels, strict=True):
        require(len(one) <= len(row), f"domains of tokens must be at most {len(row)}, as the labels are", len(one))
        beyond = int((label[len(one) :] != IGNORED).sum())
        rule = "lists of domains must have an entry for every token with a label, and rows be padded on the right"
        require(beyond == 0, rule, f"{len(one)} entries, and {beyond} labels after them")
        row[: len(one)] = one
    return found


def _number(name: Any, domains: tuple[str, ...]) -> int:  # noqa: ANN401
    """The number of a domain that is given by name or number."""
    if isinstance(name, str):
        require(name in domains, f"domains must be among {list(domains)}", name)
        return domains.index(name)
    number = name.item() if hasattr(name, "item") else name
    rule = f"domains must be among {list(domains)}, or lie in 0..{len(domains) - 1}, in every row"
    require(isinstance(number, int | float) and number in range(len(domains)), rule, repr(number))
    return int(number)


def _numbers(names: list[Any], domains: tuple[str, ...]) -> list[int]:
    """The domains of all rows by number."""
    packed = any(_is_list(name) for name in names)
    require(not packed, "rows must all have a list of domains, or none", "both")
    known = {name: _number(name, domains) for name in dict.fromkeys(names)}
    missing = [name for number, name in enumerate(domains) if number not in known.values()]
    rule = "train_dataset must have rows of every domain: leave the others out of domains"
    require(not missing, rule, f"none of {missing}")
    return [known[name] for name in names]


def _last_whole(folder: Path) -> str:
    """The last complete checkpoint in a folder."""
    found = [p for p in folder.glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    foreign = 0
    for checkpoint in sorted(found, key=lambda p: int(p.name.removeprefix("checkpoint-")), reverse=True):
        if not _is_complete(checkpoint):
            warn(f"{checkpoint} is incomplete and is skipped")
        elif not (checkpoint / STATE).is_file():
            foreign += 1
            warn(f"{checkpoint} has no file {STATE} and is skipped")
        else:
            return str(checkpoint)
    rule = f"{folder} must hold a complete checkpoint with the file {STATE}"
    rule = f"{rule}: {FOREIGN}" if foreign else rule
    require(False, rule, f"{len(found) - foreign} incomplete, {foreign} without {STATE}")  # noqa: FBT003
    return ""


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / FINISHED).read_text())
    except (OSError, ValueError):
        return False
    return True
