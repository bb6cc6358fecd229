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


def _of(file: str, *mistakes: tuple[str, str, str]) -> list[Mutant]:
    """Mistakes in a file: the text, what it becomes, and tests below `tests`."""
    return [Mutant(f"equipoise/{file}", old, new, (f"tests/{test}",)) for old, new, test in mistakes]


SIMPLEX, OMD, SELF_TUNED = "test_simplex.py", "weighting/test_omd.py", "weighting/test_self_tuned.py"
STCH, TCH, PROTOCOL = (
    "weighting/test_smooth_tchebycheff.py",
    "weighting/test_tchebycheff.py",
    "weighting/test_protocol.py",
)
SUFFIX, LEDGER, AVERAGE = "conversion/test_suffix.py", "conversion/test_ledger.py", "conversion/test_average.py"
CONTRACT, STORE = "contract/test_conversions.py", "conversion/test_store.py"
STEPS, SOLUTION, CHECKPOINT = "train/test_accumulation.py", "train/test_solution.py", "train/test_checkpoint.py"
LOOP, STORES, ARCHIVE = "train/test_multi_objective.py", "train/test_stores.py", "train/test_archive.py"
NONFINITE, INPUT, FLOOR = "train/test_nonfinite.py", "train/test_bad_input.py", "train/test_floor.py"
INTERRUPTS, ROUNDS = "train/test_interrupts.py", "federated/test_rounds.py"
REPLIES, STRATEGY, SERVER = "flower/test_bad_replies.py", "flower/test_strategy.py", "flower/test_checkpoint.py"
ATOMIC, CELLS, DATA = "test_atomic.py", "experiments/test_results.py", "datasets/test_load.py"

MUTANTS = [
    # The simplex and the mirror maps -------------------------------------------------------------
    *_of(
        "simplex.py",
        ("(ordered * rank > excess)", "(ordered * rank < excess)", f"{SIMPLEX}::test_projection_by_hand"),
        (
            "h1, h2 = max(y1, 0.5), max(y2, 0.5)",
            "h1, h2 = y1, y2",
            f"{SELF_TUNED}::test_a_local_step_is_its_definition",
        ),
        (
            "spare = 1.0 if lower is None else 1.0 - lower.sum(-1, keepdim=True)",
            "spare = 1.0",
            f"{SELF_TUNED}::test_a_local_step_is_its_definition",
        ),
        ("torch.log_softmax(moved, -1)", "moved", f"{SIMPLEX}::test_a_step_satisfies_its_variational_inequality"),
        (
            "beyond + rest / free.sum(-1, keepdim=True)",
            "beyond + rest",
            f"{SIMPLEX}::test_box_projection_is_exact",
        ),
        ("return math.sqrt(math.log(m))", "return math.log(m)", f"{OMD}::test_adaptive_eg_by_hand"),
    ),
    # Weightings ----------------------------------------------------------------------------------
    *_of(
        "weighting/omd.py",
        ("trend = mean - state.previous", "trend = state.previous - mean", f"{OMD}::test_optimism_by_hand"),
        ("felt & (steps > horizon)", "felt & (steps >= horizon)", f"{OMD}::test_a_horizon_by_hand"),
        ("norm = torch.hypot(before, length)", "norm = before + length", f"{OMD}::test_a_horizon_by_hand"),
        (
            "self._move(self.mirror.start(gain), total",
            "self._move(state.dual, total",
            f"{OMD}::test_adaptive_eg_by_hand",
        ),
        (
            'if self.order == "alternating" else state.dual',
            'if self.order == "simultaneous" else state.dual',
            f"{OMD}::test_groupdro_by_hand",
        ),
        (
            "mean = gain if present is None else torch.where(present, gain, state.previous)",
            "mean = gain",
            f"{OMD}::test_an_absent_objective_has_no_change_and_keeps_its_last_gain",
        ),
    ),
    *_of(
        "weighting/self_tuned.py",
        *(
            (old, new, f"{SELF_TUNED}::test_one_run_by_numpy_is_one_of_a_batch")
            for old, new in (
                ("pace = torch.minimum(pace, state.pace * (t / (t - 1)) ** 8)", "pace = pace * 1.0"),
                ("max(kappa * reach, math.sqrt(now.noise * m) * (0.5 / self.jitter))", "kappa * reach"),
                ("now.used, now.dual = now.dual, local_step_single(", "now.dual = local_step_single("),
                ("np.where(present, push / odds, 0.0)", "np.where(present, push, 0.0)"),
                ("level = torch.clamp(gain, -cap, cap)", "level = gain"),
                ("new = keep(present.any(-1, keepdim=True), new, state)", "pass"),
                ("if settled and t >= YOUNG:", "if settled and t > YOUNG:"),
            )
        ),
    ),
    *_of(
        "weighting/protocol.py",
        (
            "c = torch.where(seen.present, c, 0.0)",
            "pass",
            f"{PROTOCOL}::test_absent_objectives_have_coefficient_zero_whatever_a_step_returns",
        ),
        (
            "if not _surely_finite(seen.losses):",
            "if False:",
            f"{PROTOCOL}::test_every_tensor_of_a_state_stays_where_a_loss_is_not_finite",
        ),
        (
            "return coefficients.clamp(-limit, limit)",
            "return coefficients",
            "contract/test_weightings.py::test_small_probabilities_do_not_overflow_half_precision",
        ),
        ("if held != shape:", "if False:", f"{PROTOCOL}::test_a_state_of_other_losses_is_refused_whatever_it_holds"),
    ),
    *_of(
        "weighting/seen.py",
        ("weight = weight / inclusion", "weight = weight * inclusion", f"{PROTOCOL}::test_gain_and_weight_by_hand"),
        ("values = values - fit(", "values = values + fit(", f"{PROTOCOL}::test_gain_and_weight_by_hand"),
        ("~((p > 0) & ", "~((p >= 0) & ", f"{PROTOCOL}::test_an_inclusion_that_is_no_probability_is_refused"),
        (
            "last() is preference and version == preference._version and",
            "last() is preference and",
            f"{PROTOCOL}::test_a_preference_that_was_changed_is_checked_again",
        ),
    ),
    *_of(
        "weighting/smooth_tchebycheff.py",
        ("return scale * seen.weight * alpha", "return seen.weight * alpha", f"{STCH}::test_term_by_hand"),
        ("alpha = torch.softmax(scale * (gain", "alpha = torch.softmax((gain", f"{STCH}::test_term_by_hand"),
        ('1.0 if self.normalize == "sum"', '1.0 if self.normalize == "mean"', f"{STCH}::test_stch_by_hand"),
    ),
    *_of(
        "weighting/tchebycheff.py",
        (
            "gain = seen.gain if seen.present is None else seen.gain.masked_fill(~seen.present, -torch.inf)",
            "gain = seen.gain",
            f"{TCH}::test_an_absent_objective_is_not_the_worst_one_even_among_negative_losses",
        ),
        (
            "carried = torch.where(carried > 0, carried / seen.w, carried)",
            "carried = carried / seen.weight",
            f"{TCH}::test_inclusion_divides_gain_and_coefficient",
        ),
    ),
    # Conversions ---------------------------------------------------------------------------------
    *_of(
        "conversion/suffix.py",
        *(
            (old, new, f"{SUFFIX}::test_it_is_the_definition")
            for old, new in (
                ("(weight.square() * alone).cumsum(-1) / held.square()", "(weight * alone).cumsum(-1) / held"),
                ("variance = 0.5 * (weight", "variance = (weight"),
                ("device=last.device) <= last", "device=last.device) < last"),
                ("moved[:, 1:pair] = means[:, : pair - 1]", "moved[:, 1:pair] = means[:, 1:pair]"),
            )
        ),
        (
            "change = np.where(present, change, means[len(newest) :, 0])",
            "change = np.where(present, change, 0.0)",
            f"{SUFFIX}::test_a_plan_of_one_run_is_one_of_a_batch",
        ),
    ),
    *_of(
        "conversion/blocks.py",
        ("count >= 2 * unit:", "count > 2 * unit:", f"{SUFFIX}::test_blocks_of_one_run_are_those_of_a_batch"),
        ("joined = (1 - part) ** 2 * spread", "joined = (1 - part) * spread", f"{SUFFIX}::test_it_is_the_definition"),
        ("reach += newer\n", "reach += older\n", f"{SUFFIX}::test_it_is_the_definition"),
        (
            "gain = (1 - part + mix) * came",
            "gain = 1 - part + mix",
            f"{SUFFIX}::test_blocks_of_one_run_are_those_of_a_batch",
        ),
    ),
    *_of(
        "conversion/ledger.py",
        ("_all(values <= guard)", "_all(values < guard)", f"{LEDGER}::test_it_is_algorithm_2"),
        ("share / number.clamp_min(1) * valid", "share * valid", f"{LEDGER}::test_it_is_algorithm_2"),
        (
            "inherited = share + (weights * above)",
            "inherited = share + 0 * (weights)",
            f"{LEDGER}::test_it_is_algorithm_2",
        ),
        (
            "remaining = values.clone()",
            "remaining = values",
            f"{CONTRACT}::test_the_numbers_of_a_state_stay_when_the_next_one_is_made",
        ),
        ("mix = gamma_b / gamma\n", "mix = gamma_a / gamma\n", f"{LEDGER}::test_bounded_memory_is_the_naive_one"),
        ("gammas[..., :-1] > HEAVY", "gammas[..., :-1] < HEAVY", f"{LEDGER}::test_bounded_memory_is_the_naive_one"),
    ),
    *_of(
        "conversion/plan.py",
        (
            "return newest, sound, torch.where(sound.unsqueeze(-1), newest, observed)",
            "return newest, sound, newest",
            f"{CONTRACT}::test_a_non_finite_loss_leaves_the_state_as_it_was",
        ),
        (
            "newest = losses.detach().to(observed.dtype, copy=True)",
            "newest = losses.detach().to(observed.dtype)",
            f"{CONTRACT}::test_losses_may_be_overwritten_once_they_are_recorded",
        ),
        (" or tensor.is_complex()", "", f"{SOLUTION}::test_complex_parameters_are_averaged"),
        ("torch.where(mix > 0, between, old)", "between", f"{STORE}::test_a_gain_of_one_overwrites"),
    ),
    *_of(
        "conversion/store.py",
        (
            "answer += part.masked_fill_(portion <= 0, 0.0)",
            "answer += part",
            f"{STORE}::test_a_slot_without_weight_does_not_count_whatever_it_holds",
        ),
        ("first[..., 0] = 1.0", "pass", f"{STORE}::test_the_mean_of_nothing_is_the_first_slot"),
        ("heaviest = share.argmax(-1)", "heaviest = share.argmin(-1)", f"{STORE}::test_the_weighted_mean"),
    ),
    *_of(
        "conversion/average.py",
        (
            "length = torch.where(full, zero, state.length) + valid",
            "length = state.length + valid",
            f"{AVERAGE}::test_the_newest_part_has_about_the_root_of_all_iterates",
        ),
        ("newest * full, weight * valid", "newest * full, weight", f"{AVERAGE}::test_what_is_counted"),
        (
            "state.weights if fade is None else state.weights * fade",
            "state.weights * 1 if True else fade",
            f"{AVERAGE}::test_by_hand",
        ),
    ),
    # The training loop ---------------------------------------------------------------------------
    *_of(
        "train/run.py",
        (
            "(self.step + 1) % self.course.every == 0",
            "self.step % self.course.every == 0",
            f"{LOOP}::test_a_run_that_records_nothing_is_told_so",
        ),
        (
            "self._begin_step(None, aside=not self.at_once)\n                self._end_step(None)",
            "self._end_step(None)\n                self._begin_step(None, aside=not self.at_once)",
            f"{LOOP}::test_the_trajectory_is_that_of_the_loop_by_hand_bit_for_bit",
        ),
        (
            "self._unstepped = self._skips = 0\n        if self.at_once",
            "self._skips = 0\n        if self.at_once",
            f"{LOOP}::test_eight_backward_passes_without_a_step_are_said_once",
        ),
        (
            "self.accumulates = self.accumulates or len(taken.calls) > 1",
            "self.accumulates = False",
            f"{STEPS}::test_weightings_that_look_at_this_steps_losses_use_the_coefficients_of_the_step_before",
        ),
        (
            "self.step -= 1\n        self.archive.drop()",
            "self.archive.drop()",
            f"{NONFINITE}::test_deferred_such_a_step_is_not_recorded",
        ),
        (
            "self.losses = values if mask is None else torch.where(mask, values, self.losses)",
            "self.losses = values",
            f"{STEPS}::test_losses_are_weighted_by_their_counts",
        ),
        (
            "for p in self.trained():  # also those of another optimizer",
            "for p in []:  # also those of another optimizer",
            f"{NONFINITE}::test_a_skipped_step_moves_no_parameter_of_another_optimizer",
        ),
        ("elif not self.steers:", "else:", "train/test_steer.py::test_against_a_plain_loop"),
    ),
    *_of(
        "train/hooks.py",
        ("        earlier.close()\n", "", f"{LOOP}::test_a_second_shell_takes_the_optimizer_over"),
    ),
    *_of(
        "train/coefficients.py",
        (
            'return m if getattr(weighting, "uses_duals", False) else 1',
            "return 1",
            f"{LOOP}::test_the_trajectory_is_that_of_the_loop_by_hand_bit_for_bit",
        ),
        (
            "if self._looks_ahead and (several or earlier):",
            "if self._looks_ahead and several:",
            f"{STEPS}::test_weightings_that_look_at_this_steps_losses_use_the_coefficients_of_the_step_before",
        ),
        (
            "self.coefficients = c if mask is None else torch.where(mask, c, self.coefficients)",
            "self.coefficients = c",
            f"{STEPS}::test_an_absent_objective_keeps_its_coefficient_for_the_next_step",
        ),
    ),
    *_of(
        "train/archive.py",
        (
            "except BaseException as error:\n            if not isinstance(error, StoreError):",
            "except Exception as error:\n            if not isinstance(error, StoreError):",
            f"{INTERRUPTS}::test_an_archive_has_all_of_an_iterate_or_nothing[Suffix-device, at once]",
        ),
        (
            'x.detach().to("cpu", copy=True) for name',
            'x.detach().to("cpu") for name',
            f"{CHECKPOINT}::test_a_state_stays_as_it_is_while_the_run_goes_on",
        ),
        (
            "self.numbers, self._job, self.recorded = self._before, None, self.recorded - 1",
            "self._job = None",
            f"{STORES}::test_a_full_disk_raises_and_leaves_the_archive_as_it_was",
        ),
    ),
    *_of(
        "train/slots.py",
        (
            "torch._foreach_lerp_([old[name] for name in together], [new[name] for name in together], mix)",
            "torch._foreach_lerp_([old[name] for name in together], [new[name] for name in together], 1 - mix)",
            f"{ARCHIVE}::test_the_archive_is_that_of_the_conversion_bit_for_bit",
        ),
        (
            "version in old if x._version == version}",
            "version in old}",
            f"{INTERRUPTS}::test_an_archive_has_all_of_an_iterate_or_nothing[Suffix-device, at once]",
        ),
        (
            "blend(self.copies[slot], new, mix)\n        elif mix == 1",
            "blend(self.copies[slot], new, 1.0)\n        elif mix == 1",
            f"{ARCHIVE}::test_the_archive_is_that_of_the_conversion_bit_for_bit",
        ),
    ),
    *_of(
        "train/disk.py",
        ("if found != entry.sha256:", "if False:", f"{STORES}::test_an_altered_file_is_named"),
        (
            "named = self._foreign | {",
            "named = {",
            f"{STORES}::test_a_folder_that_could_not_be_filled_is_still_that_of_another_run",
        ),
        (
            "self._commit(self._entries | self._changes)",
            "self._commit(self._changes)",
            f"{STORES}::test_the_folder_holds_a_file_for_each_slot_and_a_list",
        ),
    ),
    *_of(
        "train/step.py",
        (
            "total / torch.where(present, samples, 1.0), present",
            "total / len(calls), present",
            f"{STEPS}::test_losses_are_weighted_by_their_counts",
        ),
        (
            "if self.calls and self.calls[-1].wave != call.wave and cleared():",
            "if self.calls and cleared():",
            f"{STEPS}::test_calls_of_one_backward_pass_count_together",
        ),
        (
            "self.rows = total + call.samples().to(new).unsqueeze(-1) * new",
            "self.rows = total + new",
            f"{STEPS}::test_gradients_are_weighted_by_their_counts",
        ),
    ),
    *_of(
        "train/checkpoint.py",
        (
            "bool((weights >= 0).all() and",
            "bool(",
            f"{CHECKPOINT}::test_values_that_no_run_has_are_refused_before_anything_changes",
        ),
        (
            "setattr(run, name, state[name])",
            'name == "accumulates" or setattr(run, name, state[name])',
            f"{CHECKPOINT}::test_a_loaded_run_still_knows_that_its_steps_have_several_calls",
        ),
        (
            "run.statistics, run.history, run.preferences = statistics, history, preferences",
            "run.history, run.preferences = history, preferences",
            f"{SOLUTION}::test_recalibrated_statistics_survive_a_checkpoint",
        ),
        (
            "run.prefer(run.wish.w.new_tensor(preferences[-1][1]))",
            "pass",
            "train/test_set_preference.py::test_a_run_that_is_resumed_across_the_change_is_the_same",
        ),
        ("if state.keys() != expected.keys():", "if False:", f"{CHECKPOINT}::test_a_damaged_checkpoint"),
        (
            "if name in found and found[name].shape != tensor.shape:",
            "if False:",
            f"{CHECKPOINT}::test_a_damaged_checkpoint",
        ),
    ),
    *_of(
        "train/nonfinite.py",
        (" or bool(torch.isfinite(values).all())", "", f"{NONFINITE}::test_large_losses_are_no_reason"),
        (
            "if not math.isfinite(largest):",
            "if math.isnan(largest):",
            f"{NONFINITE}::test_derivatives_that_are_infinite_are_noticed_too",
        ),
        ("low = low & (counts.wait() > 0)", "pass", f"{FLOOR}::test_an_absent_objective_is_not_below"),
    ),
    *_of(
        "train/inputs.py",
        ("_stacked({name: losses[name] for name in names}, device)", "_stacked(dict(losses), device)", f"{INPUT}"),
        ("sound = bool((n >= 0).all()) and bool(", "sound = bool(", f"{INPUT}::test_counts"),
        ("numbers = [preference[name] for name in given]", "pass", f"{INPUT}::test_names_give_a_mapping_its_order"),
    ),
    # Federated -----------------------------------------------------------------------------------
    *_of(
        "federated/server.py",
        (
            "name: t + torch.einsum(",
            "name: t - torch.einsum(",
            f"{ROUNDS}::test_rounds_of_fedavg_and_of_omd_in_plain_pytorch",
        ),
        (
            "local = {n: torch.where(batch_mask(mask, v), v, theta[n].unsqueeze(1)) for n, v in local.items()}",
            "pass",
            f"{ROUNDS}::test_what_a_silent_client_would_have_sent_does_not_matter",
        ),
        (
            "(self.m if self.weighting.uses_duals else 1), state",
            "1, state",
            f"{ROUNDS}::test_rounds_of_fedavg_and_of_omd_in_plain_pytorch",
        ),
    ),
    *_of(
        "federated/checkpoint.py",
        ("if found.get(key) != value:", "if False:", f"{ROUNDS}::test_a_checkpoint_of_another_run_is_refused"),
        ("check_zip(self.path)", "pass", f"{ROUNDS}::test_every_flip_in_a_checkpoint_is_noticed"),
    ),
    *_of(
        "federated/task.py",
        (
            "(1.0 - self.dropout) * k / m",
            "k / m",
            f"{ROUNDS}::test_a_draw_is_of_the_size_asked_for_and_says_how_likely_it_was",
        ),
    ),
    # Flower --------------------------------------------------------------------------------------
    *_of(
        "flower/replies.py",
        (
            "_demand(abs(loss) <= LARGEST_LOSS,",
            "_demand(loss <= LARGEST_LOSS,",
            f"{REPLIES}::test_a_bad_reply_is_rejected_and_the_round_goes_on",
        ),
        (
            "_demand(0 < examples <= MOST_EXAMPLES,",
            "_demand(examples <= MOST_EXAMPLES,",
            f"{REPLIES}::test_a_bad_reply_is_rejected_and_the_round_goes_on",
        ),
        (
            "if len(by_client[one.client]) > 1:",
            "if False:",
            f"{REPLIES}::test_of_two_replies_for_one_client_none_counts",
        ),
        (
            "record.keys() == like.keys()",
            "record.keys() >= like.keys()",
            f"{REPLIES}::test_a_bad_reply_is_rejected_and_the_round_goes_on",
        ),
        (
            "_demand(owner == one.node,",
            "_demand(True,",
            f"{REPLIES}::test_an_id_belongs_to_a_node_while_that_is_connected",
        ),
    ),
    *_of(
        "flower/client_limits.py",
        ("(rank <= k)", "(rank < k)", f"{REPLIES}::test_the_limit_is_the_quantile_of_the_others"),
        (
            "share * total / largest",
            "share * total",
            f"{REPLIES}::test_weights_are_limited_by_client",
        ),
    ),
    *_of(
        "flower/server.py",
        ("c = c * len(c) if self.weighting.uses_duals else c", "pass", f"{STRATEGY}::test_one_round_by_hand"),
        (
            "self._changed |= {numbers.write} if numbers.gain > 0 else set()",
            "pass",
            f"{SERVER}::test_every_conversion_resumes",
        ),
    ),
    *_of(
        "flower/checkpoint.py",
        (
            'check_configuration(found["settings"], settings)',
            "pass",
            f"{SERVER}::test_a_checkpoint_of_another_configuration_is_refused",
        ),
        ('if ours is None or ours[1] != found["run"]:', "if False:", f"{SERVER}::test_a_forged_list_is_refused"),
        (
            "if not resume and self._list.exists():",
            "if False:",
            f"{SERVER}::test_a_second_run_does_not_overwrite_the_first",
        ),
    ),
    # Files ---------------------------------------------------------------------------------------
    *_of(
        "atomic.py",
        ("temporary.unlink(missing_ok=True)", "pass", f"{ATOMIC}::test_a_failure_leaves_the_old_file_and_nothing_else"),
        ("if found != here:", "if False:", f"{ATOMIC}::test_a_changed_json_file_is_named"),
        (
            "if found != _SEAL + digest.hexdigest().encode():",
            "if False:",
            f"{ATOMIC}::test_every_flip_in_a_checkpoint_is_noticed",
        ),
        ("            raw.check()\n", "", f"{ATOMIC}::test_a_write_that_fails_fails_even_if_somebody_caught_it"),
        ("os.fchmod(handle, mode)", "pass", f"{ATOMIC}::test_a_file_keeps_its_permissions_from_the_first_byte"),
        (
            "if os.getpid() != owner:",
            "if False:",
            f"{ATOMIC}::test_a_forked_process_does_not_end_the_lock_of_its_parent",
        ),
    ),
    *_of(
        "experiments/results.py",
        (
            "if name not in _names(cell.name):",
            "if False:",
            f"{CELLS}::test_a_hostile_cell_is_made_again",
        ),
        ("and version != FORMAT:", "and version > FORMAT:", f"{CELLS}::test_a_cell_of_an_older_format_is_ignored"),
        ('if found.get("sha256") != _checksum(cell._asdict()):', "if False:", f"{CELLS}"),
        (
            ' or stated.get("sha256") != hashlib.sha256(body).hexdigest():',
            ":",
            f"{CELLS}::test_a_damaged_pack_is_named_once_and_nothing_of_it_is_read",
        ),
    ),
    *_of(
        "datasets/files.py",
        (
            "return stream.read(file.limit + 1)",
            "return stream.read()",
            f"{DATA}::test_no_more_is_read_than_the_file_may_have",
        ),
        (
            "return content if digest(content) == file.sha256 else None",
            "return content",
            f"{DATA}::test_what_comes_out_of_xz_is_kept_and_checked_when_read_again",
        ),
    ),
]
