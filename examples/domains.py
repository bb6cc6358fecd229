"""Ten domains of text, one small language model: is the worst domain left behind, and how many copies does that take?

A transformer reads bytes of the docstrings of Python's standard library. Ten of its packages are the domains; the loss
of each is an objective, all with the same weight. Every step sees the same amount of text from each domain, or (rows
"drawn") text of domains drawn by λ. All methods start from one model that was trained on the mean of the domains: that
mean (LS), the default method of the library, the same without its floor on young weights, the former default
(OptOMD-TCH) and GroupDRO. Every fifth docstring is held out. The default keeps eight copies of the model. The example
also counts how many copies the archive of the former default would hold without its capacity: the non-dominated
iterates of its run.

    python examples/domains.py --out out/domains    # some five minutes a seed on one core; needs no data
    python examples/domains.py --warm 700 --rate 2e-4 --steps 200    # fine-tuning: the losses hardly fall any more
    python examples/domains.py --quick              # some seconds
"""

import argparse
import ast
import copy
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.conversion import Ledger
from equipoise.experiments.drawing import style
from equipoise.experiments.results import write_atomically

DOMAINS: dict[str, tuple[str, ...]] = {
    "asyncio": ("asyncio",),
    "decimal": ("_pydecimal.py",),
    "doctest": ("doctest.py", "difflib.py"),
    "email": ("email",),
    "http": ("http", "urllib"),
    "importlib": ("importlib", "inspect.py"),
    "ipaddress": ("ipaddress.py", "statistics.py"),
    "logging": ("logging",),
    "unittest": ("unittest",),
    "xml": ("xml", "xmlrpc"),
}
"""Files and folders of the standard library that every installation has."""
M = len(DOMAINS)
SYMBOLS, CONTEXT, WIDTH, LAYERS, HEADS = 128, 64, 112, 2, 4
WARM, STEPS, WINDOWS, STEP_SIZE = 400, 300, 4, 2e-3
CAPACITY = 8
FORMER = "OptOMD-TCH"
METHODS: dict[str, tuple[eq.Method, str]] = {
    "LS": (eq.methods()["LS"], "#000000"),
    "equipoise": (eq.default(), "#0072B2"),
    # The start is a trained model: no objective needs the floor that protects it while training is young.
    "equipoise, youth=0": (eq.default(youth=0), "#56B4E9"),
    "equipoise, drawn": (eq.default(), "#009E73"),
    "equipoise, youth=0, drawn": (eq.default(youth=0), "#D55E00"),
    FORMER: (eq.methods()[FORMER], "#CC79A7"),
    # η = 0.01, as in the literature.
    "GroupDRO": (eq.group_dro([1] * M), "#E69F00"),
}
"""With their colours."""
LAST = "equipoise, last"
"""The row for the last iterate of the default method."""


class Text(NamedTuple):
    """The text of a domain, in bytes below 128, (n,) each."""

    train: Tensor
    held_out: Tensor


def documentation(path: Path) -> list[str]:
    """The documentation strings of a Python file, from top to bottom; nothing is imported."""
    tree = ast.parse(path.read_bytes())
    owners = [
        n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    owners.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in owners if (text := ast.get_docstring(node))]


def read(domain: str) -> Text:
    """The text of a domain: each string once, every fifth held out."""
    library = Path(sysconfig.get_path("stdlib"))
    files: list[Path] = []
    for part in DOMAINS[domain]:
        found = library / part
        files += [found] if found.is_file() else sorted(p for p in found.rglob("*.py") if "test" not in p.parts)
    # A dictionary keeps the order and drops duplicates.
    strings = list(dict.fromkeys(text for file in files for text in documentation(file)))

    def encode(chosen: list[str]) -> Tensor:
        return torch.tensor(list("\n\n".join(chosen).encode("ascii", "replace")))

    return Text(encode([s for k, s in enumerate(strings) if k % 5 < 4]), encode(strings[4::5]))


class Reader(nn.Module):
    """A causal transformer on bytes: logits (n, t, 128) of the next one, for bytes (n, t), t ≤ 64."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the byte after each one."""
        t = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        x = self.symbols(text) + self.places(torch.arange(t))
        logits: Tensor = self.out(self.norm(self.layers(x, mask=mask, is_causal=True)))
        return logits


def domain_losses(model: nn.Module, windows: Tensor) -> Tensor:
    """Nats per byte in each domain, (m,), for windows (m, n, t + 1)."""
    flat = windows.flatten(0, 1)
    values = cross_entropy(model(flat[:, :-1]).flatten(0, 1), flat[:, 1:].flatten(), reduction="none")
    return values.view(len(windows), -1).mean(1)


@torch.no_grad()
def evaluate(model: nn.Module, texts: list[Tensor], most: int) -> list[float]:
    """Nats per byte over each text, in at most `most` non-overlapping windows spread over all of it."""
    found = []
    for text in texts:
        windows = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
        chosen = windows[:: -(-len(windows) // most)]
        parts = [(domain_losses(model, part[None]), len(part)) for part in chosen.split(64)]
        found.append(sum(float(loss) * n for loss, n in parts) / len(chosen))
    return found


class Run(NamedTuple):
    """The result of one run: nats per byte by part of the text and domain, and the losses of every step, (steps, m)."""

    solution: dict[str, list[float]]
    last: dict[str, list[float]]
    seen: Tensor


def draw_windows(texts: list[Text]) -> Tensor:
    """Windows of training text, as many of each domain, (m, n, t + 1)."""
    offsets = torch.arange(CONTEXT + 1)
    starts = [torch.randint(len(text.train) - CONTEXT, (WINDOWS, 1)) for text in texts]
    return torch.stack([text.train[start + offsets] for text, start in zip(texts, starts, strict=True)])


def drawn_losses(model: nn.Module, texts: list[Text], batch: list[tuple[int, Any]]) -> tuple[Tensor, Tensor]:
    """Losses and windows of each domain, (m,), for windows of the domains that were drawn."""
    offsets = torch.arange(CONTEXT + 1)
    domains, weights = (torch.tensor(x) for x in zip(*(draw for _, draw in batch), strict=True))
    starts = [torch.randint(len(texts[i].train) - CONTEXT, ()) for i in domains.tolist()]
    windows = torch.stack([texts[i].train[start + offsets] for i, start in zip(domains.tolist(), starts, strict=True)])
    values = domain_losses(model, windows.unsqueeze(1))
    return eq.group_losses(values, domains, M, weights=weights)


def warmed(texts: list[Text], seed: int, steps: int) -> Reader:
    """A reader trained on the mean of the domains: what all methods start from."""
    torch.manual_seed(seed)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=STEP_SIZE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / 50, 1.0))
    for _ in range(steps):
        domain_losses(model, draw_windows(texts)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def train(name: str, start: Reader, texts: list[Text], seed: int, steps: int, rate: float = STEP_SIZE) -> Run:
    """Train with one method from a start; batches depend only on the seed."""
    model = copy.deepcopy(start)
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    mol = eq.MultiObjective(model, optimizer, dict.fromkeys(DOMAINS, 1 / M), method=METHODS[name][0])
    # A domain stands for all of its windows.
    sampler = eq.DomainSampler(list(range(M)), M * WINDOWS, steps=steps, seed=seed)
    seen = []
    for batch in sampler:
        if name.endswith(", drawn"):
            f, counts = drawn_losses(model, texts, batch)
            mol(f, counts).backward()
        else:
            f = domain_losses(model, draw_windows(texts))
            mol(f).backward()
        seen.append(f.detach())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        sampler.follow(mol)
    model.eval()
    parts = {"train": [text.train for text in texts], "held_out": [text.held_out for text in texts]}
    most = 400 if steps >= STEPS else 20
    last = {part: evaluate(model, of_part, most) for part, of_part in parts.items()}
    with mol.solution_weights():
        solution = {part: evaluate(model, of_part, most) for part, of_part in parts.items()}
    return Run(solution, last, torch.stack(seen))


def archive(seen: Tensor, capacity: int | None) -> list[int]:
    """The copies that an archive holds after every step of a run with these losses (steps, m)."""
    ledger = Ledger(capacity=capacity)
    state, copies = ledger.init(seen[0]), []
    for f in seen:
        _, state = ledger.update(f, ledger.grown(state))
        copies.append(int((state.weights > 0).sum()))
    return copies


def run(seeds: list[int], warm: int, steps: int, rate: float = STEP_SIZE) -> dict[str, Any]:
    """The results: nats per byte (seeds, m) by method, and the copies over the steps of the archive's runs."""
    texts = [read(domain) for domain in DOMAINS]
    rows = [*METHODS, LAST]
    methods: dict[str, dict[str, list[list[float]]]] = {name: {"train": [], "held_out": []} for name in rows}
    copies: dict[str, list[list[int]]] = {"unbounded": [], "bounded": []}
    for seed in seeds:
        start = warmed(texts, seed, warm)
        for name in METHODS:
            found = train(name, start, texts, seed, steps, rate)
            for part, values in found.solution.items():
                methods[name][part].append(values)
            if name == "equipoise":
                for part, values in found.last.items():
                    methods[LAST][part].append(values)
            if name == FORMER:
                copies["unbounded"].append(archive(found.seen, None))
                copies["bounded"].append(archive(found.seen, CAPACITY))
            print(f"seed {seed}: {name}", file=sys.stderr, flush=True)
    return {
        "domains": list(DOMAINS),
        "bytes": [len(text.train) for text in texts],
        "parameters": sum(p.numel() for p in Reader().parameters()),
        "python": sys.version.split()[0],
        "seeds": seeds,
        "warm": warm,
        "steps": steps,
        "methods": methods,
        "copies": copies,
    }


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    print(f"Python {found['python']}, {found['parameters']:,} parameters, seeds {found['seeds']}")
    print(f"{found['warm']} steps on the mean, then {found['steps']} of each method")
    for part in ("held_out", "train"):
        print(f"\nnats per byte, {part.replace('_', ' ')}, means over the seeds")
        print(f"{'':28}{'worst':>8}{'mean':>8}" + "".join(f"{domain:>11}" for domain in found["domains"]))
        for name, parts in found["methods"].items():
            f = torch.tensor(parts[part])
            cells = "".join(f"{value:>11.3f}" for value in f.mean(0).tolist())
            print(f"{name:28}{f.amax(1).mean():>8.3f}{f.mean():>8.3f}{cells}")
    megabytes = 4 * found["parameters"] / 1e6
    last = [copies[-1] for copies in found["copies"]["unbounded"]]
    print(f"\ncopies of the model ({megabytes:.1f} MB each) in the archive after {found['steps']} steps of {FORMER}:")
    print(f"without a capacity {last} (by seed), with it {[copies[-1] for copies in found['copies']['bounded']]}")


def draw(found: dict[str, Any]) -> Figure:
    """The loss of each domain by method, and the copies over the steps."""
    style()
    figure = Figure(figsize=(9.2, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    mean = {name: torch.tensor(parts["held_out"]).mean(0) for name, parts in found["methods"].items()}
    order = mean["LS"].argsort(descending=True).tolist()
    for k, (name, (_, colour)) in enumerate(METHODS.items()):
        values = mean[name]
        places = [place + 0.11 * (k - 3) for place in range(M)]
        left.plot(places, values[order], "o", color=colour, ms=5, label=name)
        left.axhline(float(values.max()), color=colour, lw=0.9, ls="--", zorder=1)
    left.set_xticks(range(M), [found["domains"][i] for i in order], rotation=35, ha="right")
    left.set(ylabel="nats per byte", title="held-out loss of each domain (dashed: the worst)")
    left.grid(axis="y", color="0.92")
    left.set_axisbelow(True)
    left.legend(frameon=False)
    steps = range(1, found["steps"] + 1)
    for number, copies in enumerate(found["copies"]["unbounded"]):
        right.plot(steps, copies, color="#D55E00", lw=1.2, label="without a capacity" if number == 0 else None)
    for number, copies in enumerate(found["copies"]["bounded"]):
        right.plot(steps, copies, color="#0072B2", lw=1.8, label=f"capacity {CAPACITY}" if number == 0 else None)
    right.set(xlabel="step", ylabel="copies of the model", title=f"what the archive of {FORMER} holds", ylim=(0, None))
    right.legend(frameon=False)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/domains"), help="folder for the picture")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--seeds", default="0", help="of start and batches")
    parser.add_argument("--steps", type=int, help=f"of each method after the warm-up; by default {STEPS}, quick 20")
    parser.add_argument("--warm", type=int, help=f"steps of the start; by default {WARM}, quick 10")
    parser.add_argument("--rate", type=float, default=STEP_SIZE, help="of the methods, after the start")
    parser.add_argument("--quick", action="store_true", help="a warm-up of ten steps, and twenty")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = run(
        [int(seed) for seed in args.seeds.split(",")],
        args.warm or (10 if args.quick else WARM),
        args.steps or (20 if args.quick else STEPS),
        args.rate,
    )
    show(found)
    if args.json is not None:
        write_atomically(args.json, json.dumps(found))
        print(f"wrote {args.json}")
    args.out.mkdir(parents=True, exist_ok=True)
    draw(found).savefig(args.out / "domains.png", dpi=200)
    print(f"wrote {args.out / 'domains.png'}")


if __name__ == "__main__":
    main()
