"""Plausible mistakes in the core of the library, each with the tests that must notice it.

The old text must occur exactly once in its file. A change of that line makes the entry stale: give it the new text.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake."""

    file: str
    """Below `src`."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest: the few tests that concern it."""


def _of(file: str, tests: str, *changes: tuple[str, str]) -> list[Mutant]:
    """Mistakes in one file; `tests` are paths below `tests`, with spaces between them."""
    paths = tuple(f"tests/{path}" for path in tests.split())
    return [Mutant(f"equipoise/{file}", old, new, paths) for old, new in changes]


MUTANTS = [
    # The simplex and the mirror maps -------------------------------------------------------------
    *_of(
        "simplex.py",
        "test_simplex.py",
        ("support = (ordered * rank > excess)", "support = (ordered * rank < excess)"),
        ("h1, h2 = max(y1, 0.5), max(y2, 0.5)", "h1, h2 = y1, y2"),
        ("spare = 1.0 if lower is None else 1.0 - lower.sum(-1, keepdim=True)", "spare = 1.0"),
        ("return torch.log_softmax(moved, -1)", "return moved"),
        ("free = (enters <= left) & (left < leaves)\n    held = torch.where(left < enters, low, high)\n"
         "    top = torch.where(free, wide, -torch.inf).amax(-1, keepdim=True)\n    beyond = torch.where(free, wide - top, 0.0)",
         "free = (enters <= left)\n    held = torch.where(left < enters, low, high)\n"
         "    top = torch.where(free, wide, -torch.inf).amax(-1, keepdim=True)\n    beyond = torch.where(free, wide - top, 0.0)"),
    ),
    *_of("simplex.py", "weighting/test_omd.py test_simplex.py", ("return math.sqrt(math.log(m))", "return math.log(m)")),
    # Weightings ----------------------------------------------------------------------------------
    *_of(
        "weighting/omd.py",
        "weighting/test_omd.py",
        ("trend = mean - state.previous", "trend = state.previous - mean"),
        ("torch.where(felt & (steps > horizon)", "torch.where(felt & (steps >= horizon)"),
        ("norm = torch.hypot(before, length)", "norm = before + length"),
        ("dual = self._move(self.mirror.start(gain), total, eta)", "dual = self._move(state.dual, total, eta)"),
        ('if self.order == "alternating" else state.dual', 'if self.order == "simultaneous" else state.dual'),
        ("mean = gain if present is None else torch.where(present, gain, state.previous)", "mean = gain"),
    ),
    *_of(
        "weighting/self_tuned.py",
        "weighting/test_self_tuned.py",
        ("pace = torch.minimum(pace, state.pace * (t / (t - 1)) ** 8)", "pace = pace * 1.0"),
        ("limit = max(kappa * reach, math.sqrt(now.noise * m) * (0.5 / self.jitter))", "limit = kappa * reach"),
        ("now.used, now.dual = now.dual, local_step_single(now.anchor, rho * d, low)",
         "now.dual = local_step_single(now.anchor, rho * d, low)"),
        ("push = np.where(present, push if odds is None else push / odds, 0.0)", "push = np.where(present, push, 0.0)"),
        ("level = torch.clamp(gain, -cap, cap)", "level = gain"),
        ("new = keep(present.any(-1, keepdim=True), new, state)", "pass"),
        ("if settled and t >= YOUNG:", "if settled and t > YOUNG:"),
    ),
    *_of(
        "weighting/protocol.py",
        "weighting/test_protocol.py contract/test_weightings.py contract/test_limits.py",
        ("c = torch.where(seen.present, c, 0.0)", "pass"),
        ("if not _surely_finite(seen.losses):", "if False:"),
        ("return coefficients.clamp(-limit, limit)", "return coefficients"),
        ("if held != shape:", "if False:"),
    ),
    *_of(
        "weighting/seen.py",
        "weighting/test_protocol.py weighting/test_omd.py contract/test_weightings.py",
        ("weight = weight / inclusion", "weight = weight * inclusion"),
        ("values = values - fit(", "values = values + fit("),
        ("outside = ~((p > 0) & (p <= 1))", "outside = ~((p >= 0) & (p <= 1))"),
        ("if not compiles and last() is preference and version == preference._version and shape[-1] == m:",
         "if not compiles and last() is preference and shape[-1] == m:"),
    ),
    *_of(
        "weighting/smooth_tchebycheff.py",
        "weighting/test_smooth_tchebycheff.py",
        ("return scale * seen.weight * alpha, state", "return seen.weight * alpha, state"),
        ("alpha = torch.softmax(scale * (gain", "alpha = torch.softmax((gain"),
        ('return 1.0 if self.normalize == "sum"', 'return 1.0 if self.normalize == "mean"'),
    ),
    *_of(
        "weighting/tchebycheff.py",
        "weighting/test_tchebycheff.py contract/test_weightings.py",
        ("gain = seen.gain if seen.present is None else seen.gain.masked_fill(~seen.present, -torch.inf)",
         "gain = seen.gain"),
        ("carried = torch.where(carried > 0, carried / seen.w, carried)", "carried = carried / seen.weight"),
    ),
    # Conversions ---------------------------------------------------------------------------------
    *_of(
        "conversion/suffix.py",
        "conversion/test_suffix.py",
        ("noise = (weight.square() * alone).cumsum(-1) / held.square()", "noise = (weight * alone).cumsum(-1) / held"),
        ("variance = 0.5 * (weight.unsqueeze(-2) * change)", "variance = (weight.unsqueeze(-2) * change)"),
        ("inside = torch.arange(self.capacity, device=last.device) <= last",
         "inside = torch.arange(self.capacity, device=last.device) < last"),
        ("moved[:, 1:pair] = means[:, : pair - 1]", "moved[:, 1:pair] = means[:, 1:pair]"),
        ("change = np.where(present, change, means[len(newest) :, 0])", "change = np.where(present, change, 0.0)"),
    ),
    *_of(
        "conversion/blocks.py",
        "conversion/test_suffix.py",
        ("if self.power > 0 and count >= 2 * unit:", "if self.power > 0 and count > 2 * unit:"),
        ("joined = (1 - part) ** 2 * spread[pair] + part**2 * spread[pair + 1]",
         "joined = (1 - part) * spread[pair] + part * spread[pair + 1]"),
        ("reach += newer\n", "reach += older\n"),
        ("gain = (1 - part + mix) * came", "gain = 1 - part + mix"),
    ),
    *_of(
        "conversion/ledger.py",
        "conversion/test_ledger.py conversion/test_adaptive.py",
        ("below, above = _all(values <= guard), _all(guards >= f)", "below, above = _all(values < guard), _all(guards >= f)"),
        ("credit = (share / number.clamp_min(1) * valid)", "credit = (share * valid)"),
        ("inherited = share + (weights * above).sum(-1)", "inherited = share + 0 * (weights * above).sum(-1)"),
        ("remaining = values.clone()", "remaining = values"),
        ("mix = gamma_b / gamma\n", "mix = gamma_a / gamma\n"),
        ("gammas[..., :-1] > HEAVY * gammas[..., -1:]", "gammas[..., :-1] < HEAVY * gammas[..., -1:]"),
    ),
    *_of(
        "conversion/plan.py",
        "conversion/test_store.py conversion/test_adaptive.py contract/test_conversions.py",
        ("torch.where(sound.unsqueeze(-1), newest, observed)\n    if sound.ndim", "newest\n    if sound.ndim"),
        ("newest = losses.detach().to(observed.dtype, copy=True)", "newest = losses.detach().to(observed.dtype)"),
        ("return tensor.is_floating_point() or tensor.is_complex()", "return tensor.is_floating_point()"),
        ("return torch.where(mix > 0, between, old)", "return between"),
    ),
    *_of(
        "conversion/store.py",
        "conversion/test_store.py contract/test_conversions.py train/test_archive.py",
        ("answer += part.masked_fill_(portion <= 0, 0.0)", "answer += part"),
        ("first[..., 0] = 1.0", "pass"),
        ("heaviest = share.argmax(-1)", "heaviest = share.argmin(-1)"),
    ),
    *_of(
        "conversion/average.py",
        "conversion/test_average.py",
        ("full = valid & (state.length.square() >= count)", "full = valid & (state.length.square() > count)"),
        ("joined, weight = newest * full, weight * valid", "joined, weight = newest * full, weight"),
        ("weights = state.weights if fade is None else state.weights * fade.unsqueeze(-1)", "weights = state.weights"),
    ),
    # The training loop ---------------------------------------------------------------------------
    *_of(
        "train/run.py",
        "train/test_multi_objective.py train/test_any_order.py",
        ("due = self.course.every is not None and (self.step + 1) % self.course.every == 0",
         "due = self.course.every is not None and self.step % self.course.every == 0"),
        ("self._begin_step(None, aside=not self.at_once)\n                self._end_step(None)",
         "self._end_step(None)\n                self._begin_step(None, aside=not self.at_once)"),
        ("self._unstepped = 0\n        if self.at_once", "if self.at_once"),
    ),
    *_of(
        "train/run.py",
        "train/test_accumulation.py train/test_nonfinite.py",
        ("self.accumulates = self.accumulates or len(pending.calls) > 1", "self.accumulates = False"),
        ("self.step -= 1\n        self.archive.drop()", "self.archive.drop()"),
        ("self.losses = values if mask is None else torch.where(mask, values, self.losses)", "self.losses = values"),
        ("for p in self.trained():  # of another optimizer", "for p in []:  # of another optimizer"),
    ),
    *_of("train/run.py", "train/test_steer.py", ("elif not self.steers:", "else:")),
    *_of(
        "train/coefficients.py",
        "train/test_accumulation.py train/test_multi_objective.py",
        ('return m if getattr(weighting, "dual", False) else 1', "return 1"),
        ("if self._looks_ahead and (several or pending.calls):", "if self._looks_ahead and several:"),
        ("self.coefficients = c if mask is None else torch.where(mask, c, self.coefficients)", "self.coefficients = c"),
    ),
    *_of(
        "train/archive.py",
        "train/test_archive.py train/test_interrupts.py",
        ("if self._numbers is not after and self.slots.finish(plan, held.params):", "if self.slots.finish(plan, held.params):"),
        ('copies = [{name: x.detach().to("cpu", copy=True)', 'copies = [{name: x.detach().to("cpu")'),
        ("self._numbers, self._job, self.recorded = job.before, None, self.recorded - 1", "self._job = None"),
    ),
    *_of(
        "train/slots.py",
        "train/test_archive.py train/test_interrupts.py train/test_stores.py",
        ("torch._foreach_lerp_([old[name] for name in together], [new[name] for name in together], mix)",
         "torch._foreach_lerp_([old[name] for name in together], [new[name] for name in together], 1 - mix)"),
        ("blend({name: x for (name, x), version in old if x._version == version}, new, mix)",
         "blend({name: x for (name, x), version in old}, new, mix)"),
        ("blend(self.copies[slot], new, mix)\n        elif mix == 1", "blend(self.copies[slot], new, 1.0)\n        elif mix == 1"),
    ),
    *_of(
        "train/disk.py",
        "train/test_stores.py",
        ("if found != entry.sha256:", "if False:"),
        ("except BaseException:\n            self._foreign = foreign\n            raise", "except ValueError:\n            raise"),
        ("            self._commit(self._entries | self._changes)\n", "            self._commit(self._changes)\n"),
    ),
    *_of(
        "train/step.py",
        "train/test_accumulation.py train/test_any_order.py",
        ("return Mean(total / torch.where(present, samples, 1.0), present)", "return Mean(total / len(calls), present)"),
        ("if self.calls and self.calls[-1].wave != call.wave and cleared():", "if self.calls and cleared():"),
        ("self.rows = total + _samples(call).to(new).unsqueeze(-1) * new", "self.rows = total + new"),
        ("if run is None or optimizer is not self.optimizer:", "if run is None:"),
    ),
    *_of(
        "train/checkpoint.py",
        "train/test_checkpoint.py",
        ('"weights": weights is None or bool((weights >= 0).all() and', '"weights": weights is None or bool('),
        ("if name in found and found[name].shape != tensor.shape:", "if False:"),
    ),
    *_of(
        "train/multi_objective.py",
        "train/test_checkpoint.py train/test_accumulation.py",
        ('run.compared, run.accumulates = state["compared"], state["accumulates"]', 'run.compared = state["compared"]'),
        ("run.statistics, run.history = statistics, history", "run.history = history"),
        ("if state.keys() != expected.keys():", "if False:"),
    ),
    *_of(
        "train/nonfinite.py",
        "train/test_nonfinite.py train/test_floor.py",
        ("or bool(torch.isfinite(values).all())", ""),
        ("if not math.isfinite(largest):", "if math.isnan(largest):"),
        ("low = low & present", "pass"),
    ),
    *_of(
        "train/inputs.py",
        "train/test_bad_input.py train/test_multi_objective.py",
        ("losses = _stacked({name: losses[name] for name in names})", "losses = _stacked(dict(losses))"),
        ("sound = bool((n >= 0).all()) and bool(torch.isfinite(n).all())", "sound = bool(torch.isfinite(n).all())"),
        ("numbers = [preference[name] for name in given]", "pass"),
    ),
    # Federated -----------------------------------------------------------------------------------
    *_of(
        "federated/server.py",
        "federated/test_rounds.py",
        ("name: t + torch.einsum(", "name: t - torch.einsum("),
        ("server.losses.append(losses.clone() if mask is None", "server.losses.append(losses if mask is None"),
        ("return c.to(losses.device) * (self.m if self.weighting.dual else 1), state", "return c.to(losses.device), state"),
    ),
    *_of(
        "federated/checkpoint.py",
        "federated/test_rounds.py",
        ("if found.get(key) != value:", "if False:"),
        ('**{f"buffers.{n}": t for n, t in server.buffers.items()},', ""),
    ),
    *_of(
        "federated/task.py",
        "federated/test_rounds.py federated/test_splits.py",
        ("(1.0 - self.dropout) * k / m", "k / m"),
    ),
    # Flower --------------------------------------------------------------------------------------
    *_of(
        "flower/replies.py",
        "flower/test_bad_replies.py",
        ("_demand(abs(loss) <= LARGEST_LOSS,", "_demand(loss <= LARGEST_LOSS,"),
        ("_demand(0 < examples <= MOST_EXAMPLES,", "_demand(examples <= MOST_EXAMPLES,"),
        ("if len(by_client[one.client]) > 1:", "if False:"),
        ("_demand(record.keys() == like.keys(),", "_demand(record.keys() >= like.keys(),"),
        ("_demand(owner == one.node,", "_demand(True,"),
    ),
    *_of(
        "flower/limits.py",
        "flower/test_strategy.py flower/test_bad_replies.py",
        ("below, above = (ordered[k + (rank <= k).to(torch.int64)] for k in (low, high))",
         "below, above = (ordered[k + (rank < k).to(torch.int64)] for k in (low, high))"),
        ("limit = most * lengths.median()", "limit = most * lengths.max()"),
    ),
    *_of(
        "flower/server.py",
        "flower/test_strategy.py flower/test_checkpoint.py flower/test_equality.py",
        ("c = c * len(c) if self.weighting.dual else c", "pass"),
        ("self._changed |= {numbers.write} if numbers.gain > 0 else set()", "pass"),
    ),
    *_of(
        "flower/checkpoint.py",
        "flower/test_checkpoint.py",
        ("check_configuration(found[\"settings\"], settings)", "pass"),
        ("if ours is None or ours[1] != found[\"run\"]:", "if False:"),
    ),
    # Files ---------------------------------------------------------------------------------------
    *_of(
        "atomic.py",
        "test_atomic.py",
        ("temporary.unlink(missing_ok=True)", "pass"),
        ("os.fsync(handle)", "pass"),
        ("if found != here:", "if False:"),
        ("if found != _SEAL + digest.hexdigest().encode():", "if False:"),
        ("raw.check()\n", "pass\n"),
        ("os.fchmod(handle, mode)", "pass"),
    ),
    *_of("atomic.py", "test_atomic.py train/test_stores.py", ("if os.getpid() != owner:", "if False:")),
    *_of(
        "experiments/cells.py",
        "experiments/test_cells.py",
        ("if path.name not in {name, _beside_newer(name)}:", "if False:"),
        ("if isinstance(version, int) and version > FORMAT:", "if isinstance(version, int) and version >= FORMAT:"),
        ('if version != 1 and found.get("sha256") !=', 'if version == 1 and found.get("sha256") !='),
    ),
    *_of(
        "datasets/files.py",
        "datasets/test_load.py",
        ("return stream.read(file.limit + 1)", "return stream.read()"),
        ("return content if digest(content) == file.sha256 else None", "return content"),
    ),
]
