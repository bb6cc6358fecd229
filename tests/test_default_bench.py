"""The bench behind the default, `python -m benchmarks.defaults`."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from benchmarks.defaults import __main__ as command
from benchmarks.defaults import digits, federated, networks, results, summary, synthetic
from benchmarks.defaults.columns import TUNED, Uncertainty, columns
from benchmarks.defaults.jobs import Job, Order, execute, missing
from benchmarks.defaults.optimizers import Optimizer, Setting
from benchmarks.defaults.results import Record
from benchmarks.defaults.tasks import Bottleneck, Classes, Coloured, Dense
from torch import nn
from torch.nn import functional

import equipoise as eq
from equipoise.problems import DTLZ2, F1, VLMOP2

PLAIN = {"SGD .02": Setting(0.02)}


def losses(record: Record) -> torch.Tensor:
    return torch.tensor(record.train, dtype=torch.float64)


def untimed(records: list[Record]) -> list[Record]:
    return [dataclasses.replace(record, seconds=0.0) for record in records]


# ------------------------------------------------------------------------------- the loop
@pytest.mark.parametrize(
    "column",
    ["equipoise", "old default", "AdaOMDeg", "LS", "STCH 0.01", "UPGrad", "UW", "DWA", "FAMO", "GradNorm", "RLW"],
)
def test_plain_sgd_without_noise_is_solve(column):
    method, w = columns()[column], eq.preference.linspace(10).to(torch.float64)
    others = {name: columns()[name] for name in ("TCH", "LS", "UPGrad")}
    found = synthetic.run(VLMOP2(), {**others, column: method}, steps=30, noises=(0.0,), optimizers=PLAIN)
    record = next(record for record in found if record.column == column)
    expected = eq.solve(VLMOP2(), w, method, seeds=(0, 19, 42), steps=30, dtype=torch.float64)
    torch.testing.assert_close(losses(record), expected.losses["solution"], rtol=1e-6, atol=1e-7)


def test_both_lengths_come_from_one_run():
    methods = {"old": columns()["old default"], "LS": columns()["LS"]}
    both = synthetic.run(F1(), methods, steps=(10, 25))
    assert {record.steps for record in both} == {10, 25}
    assert untimed([record for record in both if record.steps == 10]) == untimed(synthetic.run(F1(), methods, steps=10))


def test_noise_does_not_depend_on_what_else_is_run():
    alone = synthetic.run(F1(), {"LS": columns()["LS"]}, steps=20)
    among = synthetic.run(F1(), {name: columns()[name] for name in ("TCH", "LS", "UPGrad")}, steps=20)
    assert untimed(alone) == untimed([record for record in among if record.column == "LS"])
    quiet, loud = alone[0], alone[10]
    assert (quiet.setting, loud.setting) == ("σ=0 SGD .02", "σ=0.2 SGD .02")
    assert quiet.train != loud.train


def test_three_objectives_have_ten_inner_preferences():
    w, judged = synthetic.wishes(3)
    assert tuple(w.shape) == (10, 3)
    assert w.min().item() == pytest.approx(1 / 6)
    assert len(judged) == 10
    record = synthetic.run(DTLZ2(), {"TCH": columns(3)["TCH"]}, steps=2, noises=(0.0,), optimizers=PLAIN)[0]
    assert record.exact == pytest.approx((w * DTLZ2().solution(w)).amax(-1).tolist())


@pytest.mark.parametrize(
    ("setting", "make"),
    [
        (Setting(0.1), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
        (Setting(0.05, 0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)),
        (Setting(0.02, 0.9, adam=True), lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.01)),
    ],
)
def test_the_optimizers_are_those_of_torch(setting, make):
    every = [Setting(1.0), setting, Setting(0.3, 0.5, adam=True)]  # the others in the batch do not matter
    optimizer = Optimizer.of(every, (-1,), dtype=torch.float64, decay=0.01)
    start = torch.linspace(-1, 2, 5, dtype=torch.float64)
    theta, state = start.expand(3, 5), optimizer.init(start.expand(3, 5))
    parameter = nn.Parameter(start.clone())
    reference = make([parameter])
    for t in range(20):
        gradient = torch.sin(parameter.detach() + t)
        parameter.grad = gradient.clone()
        reference.step()
        theta, state = optimizer.step(theta, gradient.expand(3, 5), state)
    torch.testing.assert_close(theta[1], parameter.detach())


def test_a_cosine_schedule_ends_at_zero():
    optimizer = dataclasses.replace(Optimizer(rate=torch.tensor(1.0)), horizon=4)
    theta = torch.zeros(1)
    state, moves = optimizer.init(theta), []
    for _ in range(4):
        after, state = optimizer.step(theta, torch.ones(1), state)
        moves.append((theta - after).item())
        theta = after
    assert moves == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])


def test_uncertainty_weighting_is_its_loss_differentiated():
    w, rate = torch.tensor([0.3, 0.7], dtype=torch.float64), 0.1
    weighting = Uncertainty(Optimizer(rate=torch.tensor(rate, dtype=torch.float64)))
    s = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    state = weighting.init(w)
    for t in range(5):
        f = torch.tensor([2.0 + t, 0.5], dtype=torch.float64)
        (w * (0.5 * torch.exp(-s) * f + 0.5 * s)).sum().backward()
        expected = 0.5 * w * torch.exp(-s.detach())
        c, state = weighting.update(f, state, w)
        torch.testing.assert_close(c, expected)
        with torch.no_grad():
            assert s.grad is not None
            s -= rate * s.grad
            s.grad.zero_()
    torch.testing.assert_close(state.log_variances, s.detach())


# ------------------------------------------------------------------------------- networks
def test_dense_is_a_sequence_of_linear_layers():
    net = Dense((3, 4, 2), torch.tanh)
    theta, x = torch.randn(net.d, generator=torch.Generator().manual_seed(0)), torch.arange(15.0).reshape(5, 3) / 10
    hidden = functional.linear(x, theta[:12].reshape(3, 4).T, theta[12:16]).tanh()
    expected = functional.linear(hidden, theta[16:24].reshape(4, 2).T, theta[24:])
    torch.testing.assert_close(net(theta[None], x[None])[0], expected)


@pytest.mark.parametrize("make", [lambda seeds: Bottleneck(seeds, "cpu", 2), lambda seeds: Classes(seeds, "cpu", 5)])
def test_many_networks_are_each_by_itself(make):
    task = make((3, 4))
    theta = torch.stack([task.initial(), 0.5 * task.initial()])  # (2, S, d)
    batch = task.draw(2)[1]
    together, whole = task.losses(theta, batch), task.whole(theta, "test")
    for s, seed in enumerate((3, 4)):
        alone = make((seed,))
        assert torch.equal(alone.draw(2)[1, 0], batch[s])
        for b in range(2):
            mine = theta[b, s : s + 1]
            torch.testing.assert_close(alone.losses(mine, batch[s : s + 1])[0], together[b, s])
            torch.testing.assert_close(alone.whole(mine, "test")[0], whole[b, s])


def test_a_group_has_its_own_mean_and_its_share_of_a_batch():
    task = Coloured((0, 7), "cpu")
    theta, batch = task.initial(), task.draw(1)[0]
    for s in range(2):
        groups = task.train.groups[s, batch[s]]
        assert groups.bincount().tolist() == [16] * 4
        output = task.net(theta[s : s + 1], task.train.inputs[s : s + 1])[0]
        values = functional.cross_entropy(output, task.train.labels[s], reduction="none")
        expected = [values[task.train.groups[s] == g].mean().item() for g in range(4)]
        assert task.whole(theta, "train")[s].tolist() == pytest.approx(expected, rel=1e-4)
    assert not torch.equal(task.train.groups[0], task.train.groups[1])  # colours are drawn
    right = task.net(theta[:1], task.test.inputs)[0].argmax(-1) == task.test.labels[0]
    worst = min(right[task.test.groups[0] == g].float().mean().item() for g in range(4))
    assert task.accuracy(theta)[0].item() == pytest.approx(worst, rel=1e-5)


def test_start_units_undo_a_factor():
    method = {"equipoise": columns()["old default"]}
    usual = networks.run("4 units", method, preferences=[(0.3, 0.7)], seeds=(0,), steps=25)[0]
    scaled = networks.run("4 units ×300", method, preferences=[(0.3, 0.7)], seeds=(0,), steps=25)[0]
    torch.testing.assert_close(losses(scaled), losses(usual), rtol=1e-3, atol=0.0)
    other = networks.run("4 units ×300", {"x": method["equipoise"]}, preferences=[(0.3, 0.7)], seeds=(0,), steps=25)[0]
    assert losses(other)[0, 0, 1] > 1.02 * losses(usual)[0, 0, 1]  # the loss in small units is neglected


def test_a_network_run_can_be_repeated():
    methods = {name: columns(10)[name] for name in ("equipoise", "LS", "uncertainty")}
    first, second = (networks.run("digits linear", methods, seeds=(11,), steps=5) for _ in range(2))
    assert untimed(first) == untimed(second)
    assert all(len(record.test) == 1 and not record.judged for record in first)


def test_digits_from_a_file_are_those_of_scikit_learn(tmp_path, monkeypatch):
    usual = digits.digits.__wrapped__()
    digits.write(tmp_path / "digits.npz")
    monkeypatch.setenv(digits.VARIABLE, str(tmp_path / "digits.npz"))
    read = digits.digits.__wrapped__()
    for name in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
        assert torch.equal(getattr(read, name), getattr(usual, name))


# ------------------------------------------------------------------------------- records and scores
def record(column: str, train: results.Numbers, **changes: Any) -> Record:
    usual = Record(
        part="synthetic",
        half="chosen",
        problem="P",
        setting="S",
        steps=3,
        column=column,
        seeds=(0,),
        preferences=[[0.5, 0.5], [0.25, 0.75]],
        train=train,
        test=[],
        exact=[1.0, 0.5],
        judged=[1],
        accuracy=[],
        seconds=0.0,
    )
    return dataclasses.replace(usual, **changes)


def test_scores_by_hand():
    mine, base = record("mine", [[[2.0, 3.0], [4.0, 1.0]]]), record("LS", [[[1.9, 2.9], [4.0, 0.5]]])
    (row,) = summary.rows([mine, base])
    assert row.name == "P S T=3"
    score = row.scores["mine"]
    assert score.tch == pytest.approx((1.5 + 1.0) / 2)
    assert score.excess == pytest.approx((0.5 + 1.0) / 2)  # 1.5 over 1, and 1 over 0.5
    assert score.imbalance == pytest.approx(1.0 / 0.75 - 1)  # of the second preference alone
    assert (score.behind, score.runs) == (1, 2)  # the second has 4.0 in common
    assert row.scores["LS"].behind is None


def test_without_an_exact_value_the_best_column_is_the_measure():
    rows = summary.rows(
        [record("a", [[[2.0, 2.0], [1.0, 1.0]]], exact=[]), record("b", [[[4.0, 4.0], [2.0, 2.0]]], exact=[])]
    )
    assert (rows[0].scores["a"].excess, rows[0].scores["b"].excess) == pytest.approx((0.0, 1.0))


def test_a_column_that_is_run_anew_replaces_the_published_one():
    def row(part: str, **values: float) -> summary.Row:
        exact = [] if part == "networks" else [1.0, 0.5]
        records = [record(name, [[[v, v], [v, v]]], part=part, exact=exact) for name, v in values.items()]
        return summary.rows(records)[0]

    for part in ("networks", "synthetic"):
        (found,) = summary.merged([row(part, mine=4.0, other=2.0)], [row(part, mine=1.0, other=9.0)], ["mine"])
        assert found.scores["mine"] == row(part, mine=1.0, other=2.0).scores["mine"]
        assert found.scores["other"] == row(part, mine=1.0, other=2.0).scores["other"]  # its excess over the new best
    untouched = row("networks", mine=4.0)._replace(name="another row")
    assert summary.merged([untouched], [row("networks", mine=1.0)], ["mine"]) == [untouched]


def test_a_tuned_column_is_the_best_of_its_parts():
    (name, parts), values = next(iter(TUNED.items())), (3.0, 2.0, 4.0)
    found = [record(part, [[[v, v], [v, v]]]) for part, v in zip(parts, values, strict=True)]
    (row,) = summary.rows(found)
    assert row.scores[name] == row.scores[parts[1]]


def test_records_survive_an_interruption(tmp_path):
    file = tmp_path / "runs" / "records.jsonl"
    kept, lost = record("a", [[[1.0, 2.0], [3.0, 4.0]]]), record("b", [[[1.0, 2.0], [3.0, 4.0]]])
    results.append(file, [kept, lost])
    file.write_text(file.read_text()[:-40])
    assert results.read(file) == [kept]
    results.append(file, [lost])
    assert results.read(file) == [kept, lost]


def test_what_is_not_finite_is_a_large_number():
    assert results.numbers(torch.tensor([[[torch.nan, torch.inf, 1.0]]])) == [[[1e30, 1e30, 1.0]]]


# ------------------------------------------------------------------------------- the command
def test_the_command_runs_what_is_missing_and_shows_what_it_wrote(tmp_path, capsys):
    file, published = tmp_path / "records.jsonl", tmp_path / "defaults.json"
    arguments = ["--part", "synthetic", "--half", "held-out", "--rows", "VLMOP1*σ=0 ", "--steps", "20"]
    command.main([*arguments, "--methods", "LS", "--json", str(file)])
    assert "1/1 synthetic, held-out: VLMOP1, 1 methods" in capsys.readouterr().out
    command.main([*arguments, "--methods", "LS,TCH", "--json", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert "VLMOP1, 1 methods" in lines[0]  # LS is there already
    assert len(lines) == 2 + len(synthetic.OPTIMIZERS)
    assert {json.loads(line)["column"] for line in file.read_text().splitlines()} == {"LS", "TCH"}
    command.main([*arguments, "--methods", "LS,TCH", "--json", str(file), "--publish", str(published), "--summary"])
    said = capsys.readouterr().out
    assert "/1 " not in said.splitlines()[0]
    command.main([*arguments, "--show", str(published)])
    assert capsys.readouterr().out == said


def test_jobs_are_the_columns_that_are_missing():
    order = Order(("networks",), ("chosen",), ("LS", "TCH"), pattern="2 units")
    (job,) = missing(order, [])
    assert (job.problem, job.names, job.objectives) == ("2 units", ("LS", "TCH"), 2)
    rows = networks.TASKS["2 units"]
    done = [
        record("LS", [], part="networks", problem="2 units", setting=setting, steps=rows.steps)
        for setting in networks.settings(rows)
    ]
    (job,) = missing(order, done)
    assert job.names == ("TCH",)
    (job,) = missing(order, done[1:])  # a row is missing
    assert job.names == ("LS", "TCH")


def test_the_whole_bench_has_every_problem_in_its_half():
    everything = list(missing(Order(), []))
    held_out = {job.problem for job in everything if (job.part, job.half) == ("synthetic", "held-out")}
    assert len(held_out) == 11
    assert len(everything) == 5 + 11 + 2 * len(networks.TASKS) + 2 * len(federated.TASKS)
    assert all(job.steps == (1_000, 10_000) for job in everything if job.part == "synthetic")
    assert "uncertainty" not in everything[-1].names  # federated


def test_several_processes_give_the_same_records():
    quick = [Job("synthetic", "chosen", name, (2,), ("LS",), "cpu") for name in ("F1", "F2")]
    alone, together = (dict(execute(quick, workers)) for workers in (1, 2))
    assert {job: untimed(found) for job, found in alone.items()} == {
        job: untimed(found) for job, found in together.items()
    }


def test_the_summary_counts_rows_near_the_best_and_lists_the_others():
    best, near, far = ([[[v, v], [2 * v, 2 * v]]] for v in (2.0, 2.03, 3.0))
    rows = summary.rows([record("best", best), record("mine", near)])
    rows += summary.rows([record("best", best, setting="other"), record("mine", far, setting="other")])
    text = summary.summary(rows, ours="mine")
    totals = {line.split()[0]: line.split() for line in text.splitlines()[2:] if line and "above" not in line}
    assert "1/2" in totals["mine"]
    assert "2/2" in totals["best"]
    assert "more than 2% above the best on 1 rows" in text
    # (1 + excess)/(1 + best excess): 3.0 over 2.0.
    assert "P other T=3" in text
    assert "50.0 % above best" in text


def test_an_unknown_column_is_named(capsys):
    with pytest.raises(SystemExit):
        command.main(["--methods", "LS,TCHH"])
    assert "methods must be columns of the bench; found 'TCHH'" in capsys.readouterr().err
