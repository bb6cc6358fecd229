"""A callback for Lightning's Trainer that creates `mol`, evaluates the solution and saves it.

Needs the extra `lightning`; nothing else imports this module.
"""

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from equipoise.errors import require
from equipoise.train.domains import DomainSampler, DomainStreams
from equipoise.train.inputs import Choice, Preference
from equipoise.train.multi_objective import MultiObjective, check_settings
from equipoise.train.run_length import with_length

__all__ = ["MultiObjectiveCallback"]

TRAINING_WEIGHTS = "current_model_state"
"""The checkpoint key of the weights that training resumes with; Lightning's `WeightAveraging` uses the same key."""


class MultiObjectiveCallback(Callback):
    """A weighting and a conversion in a Lightning `Trainer`.

    While `fit` runs, the module has `self.mol`, a `MultiObjective` attached to its optimizer. Automatic and manual
    optimization with one optimizer work, with gradient accumulation, clipping and mixed precision.

    - Validation within `fit` uses the solution once something was recorded; the sanity check does not.
    - `state_dict` of a checkpoint is the solution: `load_from_checkpoint`, `test` and `predict` get it. The training
      weights and the method's state are saved too, and `fit(ckpt_path=...)` resumes bit for bit.
    - When training ends, the module holds the solution.

    Args:
        preference: w, one entry per objective, in order or by name.
        method: As in `MultiObjective`; by default `default(steps=...)` for the Trainer's `estimated_stepping_batches`.
            A resumed run keeps the number that it began with.
        log_every: Log `mol.metrics()` every so many optimizer steps, under names that begin with `mol/`; None for
            never.
        recalibrate: Batches, or tuples that begin with the model's input. At the end of training one pass over them
            recomputes the BatchNorm statistics for the solution, with the module's `forward`; None keeps those of the
            last iterate.
        sampler: The sampler of the training loader, if its batches follow λ; its state is saved with the method's.
        settings: Further arguments of `MultiObjective`.

    Raises:
        ValueError: For what `MultiObjective` refuses. When `fit` begins: unless there is exactly one optimizer, if the
            module already has a `mol`, and for a `ModelCheckpoint(save_weights_only=True)`.

    Examples:
        >>> from lightning.pytorch import LightningModule, Trainer
        >>> from equipoise.train.lightning import MultiObjectiveCallback
        >>> class Net(LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.x = torch.nn.Parameter(torch.zeros(()))
        ...     def training_step(self, batch, batch_idx):
        ...         return self.mol(torch.stack([self.x**2, (self.x - 2) ** 2]))  # per objective, (m,) or by name
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> net, callback = Net(), MultiObjectiveCallback([0.1, 0.9])
        >>> off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        >>> trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **dict.fromkeys(off, False))
        >>> trainer.fit(net, torch.utils.data.DataLoader(torch.zeros(200)))
        >>> round(net.x.item(), 1)  # 0.1 x² = 0.9 (x − 2)²
        1.5
    """

    def __init__(
        self,
        preference: Preference,
        *,
        method: Choice = None,
        log_every: int | None = 50,
        recalibrate: Iterable[Any] | None = None,
        sampler: DomainSampler | DomainStreams | None = None,
        **settings: Any,
    ) -> None:
        require(log_every is None or log_every >= 1, "log_every must be None or at least 1", log_every)
        rule = "settings must leave model and optimizer to the Trainer"
        require(not {"model", "optimizer"} & settings.keys(), rule, list(settings))
        self._settings = {"preference": preference, "method": method, **settings}
        check_settings(self._settings)
        self.log_every, self.recalibrate, self.sampler = log_every, recalibrate, sampler
        self._mol: MultiObjective | None = None
        self._fitting = False
        self._loaded: dict[str, Any] | None = None
        self._lent: AbstractContextManager[None] | None = None
        """The open context while the module holds the solution for validation."""
        self._training: dict[str, Any] | None = None
        """The module's state at the end of training, before it got the solution; on the host."""
        self._logged = self._followed = 0
        self._steps: int | None = None
        """The length of the run as the default method knows it; None: unknown."""

    @property
    def mol(self) -> MultiObjective:
        """The `MultiObjective` of the current or last `fit`."""
        require(self._mol is not None, "mol must be asked for after fit has begun", "no fit yet")
        assert self._mol is not None  # noqa: S101
        return self._mol

    # The run ----------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the settings, and give the module a `mol` that explains why it cannot be called yet."""
        own = getattr(pl_module, "mol", None)
        known = own is None or isinstance(own, _Outside) or own is self._mol
        require(known, "the module must leave its attribute mol to MultiObjectiveCallback", lambda: type(own))
        for checkpoint in trainer.checkpoint_callbacks:
            rule = (
                "ModelCheckpoint must have save_weights_only=False: Lightning asks no callback for weights alone, and "
                "they would be those of the last iterate, not of the solution"
            )
            require(not getattr(checkpoint, "save_weights_only", False), rule, "True")
        missing = self.recalibrate is not None and not is_overridden("forward", pl_module)
        rule = "the module must define forward(inputs) for recalibrate=, which calls it"
        require(not missing, rule, lambda: f"no forward in {type(pl_module).__name__}")
        self._fitting, self._loaded = stage == "fit", None
        if self._fitting and self._mol is not None:
            self._mol.close()
            self._mol, self._training = None, None
        _give(pl_module, _Outside())

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create `mol`, now that the optimizers exist and the module is on its device."""
        number = len(trainer.optimizers)
        require(number == 1, "configure_optimizers must give one optimizer", number)
        self._attach(pl_module, trainer.optimizers[0], _length(trainer) if self._settings["method"] is None else None)
        self._logged = self._followed = 0
        if trainer.ckpt_path and self._loaded is None and not trainer.strategy.restore_checkpoint_after_setup:
            found = f"{trainer.ckpt_path} has no state of MultiObjectiveCallback"
            warnings.warn(f"{found}: the method starts afresh, from the checkpoint's weights", stacklevel=2)
        self._restore()
        self._followed = self.mol.step

    def _attach(self, module: Any, optimizer: Any, steps: int | None) -> None:  # noqa: ANN401
        """Attach the method of a run of so many steps to the optimizer, and give it to the module."""
        self._mol, self._steps = MultiObjective(module, optimizer, **with_length(self._settings, steps)), steps
        _give(module, self._mol)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:  # noqa: ARG002
        """Discard the calls of a skipped step.

        Lightning clears the gradients only after `training_step`, too late for the choice of coefficients.
        """
        if pl_module.automatic_optimization and batch_idx % trainer.accumulate_grad_batches == 0:
            self.mol.discard()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:  # noqa: ANN401, ARG002
        """Ignore a step without gradients (`training_step` returned None): it moves nothing."""
        if pl_module.automatic_optimization:
            self.mol._run.pass_if_idle()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Update the sampler, and log the metrics if they are due."""
        step = self.mol.step
        if self.sampler is not None and step != self._followed:
            self._followed = step
            self.sampler.follow(self.mol)
        if self.log_every is not None and step != self._logged and step % self.log_every == 0:
            self._logged = step
            metrics = self.mol.metrics()
            pl_module.log_dict({f"mol/{name}": x for name, x in metrics.items() if name != "step"}, batch_size=1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Leave the solution in the module."""
        if self.mol.recorded == 0:
            return
        if self.recalibrate is not None:
            self.mol.update_bn(self.recalibrate)
        self._training = _on_host(pl_module.state_dict())
        pl_module.load_state_dict(self.mol.solution(gather=False), strict=pl_module.strict_loading)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Detach from the optimizer and the module."""
        if stage == "fit" and self._mol is not None:
            self._mol.close()
            self._fitting = False
        _give(pl_module, _Outside())

    # Validation -------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Swap the solution into the module."""
        if self._fitting and not trainer.sanity_checking:
            self._lend()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Restore the training weights; a `ModelCheckpoint` saves after this."""
        self._take_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Restore the training weights if validation failed."""
        self._take_back()

    def _lend(self) -> None:
        if self.mol.recorded > 0:
            self._lent = self.mol.solution_weights()
            self._lent.__enter__()

    def _take_back(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.__exit__(None, None, None)

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The method's state, during and after `fit`."""
        if self._mol is None or not (self._fitting or self._training is not None):
            return {}
        drawn = {} if self.sampler is None else {"sampler": self.sampler.state_dict()}
        return {"mol": self._mol.state_dict(), "steps": self._steps, **drawn}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume the method's state as soon as `mol` exists."""
        if self._fitting:
            self._loaded = state_dict
            self._restore()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Save the solution under `state_dict`, and the training weights under their own key."""
        if self._training is not None:  # the module holds the solution
            checkpoint[TRAINING_WEIGHTS] = self._training
        elif self._fitting and self._mol is not None and self._mol.recorded > 0:
            state, answer = checkpoint["state_dict"], self._mol.solution(gather=False)
            checkpoint["state_dict"] = {key: answer.get(key, x) for key, x in state.items()}
            if self._lent is not None:  # saved during validation: the entries of state alias the module's tensors
                self._take_back()
                state = _on_host(state)
                self._lend()
            checkpoint[TRAINING_WEIGHTS] = state

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Resume training with the training weights; everything else uses the solution."""
        if not self._fitting:
            self._training = None  # the module holds other weights now
        elif TRAINING_WEIGHTS in checkpoint:
            pl_module.load_state_dict(checkpoint[TRAINING_WEIGHTS], strict=pl_module.strict_loading)

    def _restore(self) -> None:
        if self._loaded is not None and self._mol is not None:
            begun, attached = self._loaded.get("steps"), self._mol._run.attached
            if begun != self._steps and attached is not None:
                self._mol.close()
                self._attach(self._mol.model, attached.optimizer, begun)
            self.mol.load_state_dict(self._loaded["mol"])
            rule = "the checkpoint must be of a fit with a sampler, as this one is, or both without"
            require((self.sampler is None) == ("sampler" not in self._loaded), rule, sorted(self._loaded))
            if self.sampler is not None:
                self.sampler.load_state_dict(self._loaded["sampler"])
            self._loaded = None


class _Outside:
    """Stands in for `mol` while no training runs."""

    def __call__(self, *losses: object, **counts: object) -> NoReturn:  # noqa: ARG002
        raise ValueError("mol must be called in training_step while fit runs; found no fit running")


def _give(pl_module: LightningModule, mol: MultiObjective | _Outside) -> None:
    object.__setattr__(pl_module, "mol", mol)


def _length(trainer: Trainer) -> int | None:
    """The optimizer steps of a fit; None if they are unknown."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if 1 <= steps < float("inf") else None


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    return {key: x.detach().to("cpu", copy=True) if isinstance(x, Tensor) else x for key, x in state.items()}
