"""Six languages, one language model: batches drawn by λ against the usual remedies for domains of unequal size.

A transformer reads bytes of Debian's manual pages in German, French, Japanese, Polish, Russian and Spanish. Each
language is a domain, its mean loss per byte an objective, all of the same weight. Every tenth page is held out. A
start is a model that was trained on the mean of the languages for a while. From it five methods go on, with the same
number of windows of text a step:

    LS                  as much text of each language, their mean
    temperature         languages drawn in proportion to size^0.5, the usual remedy for unequal sizes
    GroupDRO            as much text of each, weights λ with step η
    equipoise           as much text of each, the default method
    equipoise, drawn    the default method, with languages drawn by λ (`DomainSampler`)

Get the pages first, 13 MB, on a Debian machine or from any mirror of Debian's archive:

    mkdir -p data/manpages && cd data/manpages
    apt-get download manpages-de manpages-fr manpages-ja manpages-pl manpages-ru manpages-es
    for package in *.deb; do dpkg-deb -x $package .; done

    python examples/languages.py --size tiny    # 0.3 million parameters, some 75 s on one core
    python examples/languages.py                # 11 million, on a GPU
    python examples/languages.py --size medium  # 50 million
"""

import argparse
import copy
import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset

import equipoise as eq

LANGUAGES = {"de": "German", "fr": "French", "ja": "Japanese", "pl": "Polish", "ru": "Russian", "es": "Spanish"}
BYTES = {"de": 9.8e6, "fr": 4.8e6, "ja": 10.7e6, "pl": 3.7e6, "ru": 3.4e6, "es": 2.3e6}
"""What Debian 12 has, without links from one page to another."""
M = len(LANGUAGES)
TEMPERATURE = 0.5
COLOURS = {
    "LS": "#000000",
    "temperature": "#999999",
    "GroupDRO": "#E69F00",
    "equipoise": "#0072B2",
    "equipoise, drawn": "#D55E00",
}


class Size(NamedTuple):
    """A model, and how long it is trained."""

    width: int
    layers: int
    heads: int
    context: int
    windows: int
    """Of a step."""
    warm: int
    """Steps on the mean."""
    steps: int
    """Of each method after them."""
    held_out: int
    """Windows of each language that are evaluated."""


SIZES = {
    "tiny": Size(96, 2, 4, 64, 24, 250, 200, 40),
    "small": Size(384, 6, 6, 512, 48, 400, 800, 200),
    "medium": Size(640, 10, 10, 512, 48, 400, 800, 200),
}


# The text ---------------------------------------------------------------------------------------


class Text(NamedTuple):
    """Windows of the text of all languages, in bytes, (n, t + 1), and the language of each, (n,)."""

    windows: Tensor
    languages: Tensor


def read_pages(folder: Path, language: str) -> list[bytes]:
    """The pages of a language, each once, in the order of their names."""
    files = sorted(p for p in (folder / "usr/share/man" / language).rglob("*.gz") if p.is_file() and not p.is_symlink())
    pages = list(dict.fromkeys(gzip.decompress(p.read_bytes()) for p in files))
    found = sum(map(len, pages))
    if found < 0.9 * BYTES[language]:
        advice = f"get manpages-{language} as this file's first lines say, or name its folder by --data"
        raise SystemExit(
            f"{folder} must hold some {BYTES[language] / 1e6} MB of {language}; found {found / 1e6:.1f}: {advice}"
        )
    for page in pages:
        page.decode()  # raises for what is not UTF-8
    return pages


def read(folder: Path, context: int) -> tuple[Text, Text]:
    """Training and held-out text: every tenth page of each language is held out."""
    parts: list[tuple[list[Tensor], list[Tensor]]] = [([], []), ([], [])]
    for number, language in enumerate(LANGUAGES):
        pages = read_pages(folder, language)
        for (windows, languages), chosen in zip(
            parts, ([p for k, p in enumerate(pages) if k % 10], pages[::10]), strict=True
        ):
            text = torch.from_numpy(np.frombuffer(b"\n".join(chosen), np.uint8).copy())
            text = text[: len(text) // (context + 1) * (context + 1)].view(-1, context + 1)
            windows.append(text)
            languages.append(torch.full((len(text),), number))
    train, held_out = (Text(torch.cat(windows), torch.cat(languages)) for windows, languages in parts)
    return train, held_out


class Windows(Dataset[Tensor]):
    """Windows of all languages."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __len__(self) -> int:
        return len(self.text.windows)

    def __getitem__(self, index: int) -> Tensor:
        return self.text.windows[index]


# The model --------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention to earlier bytes, and two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Of (n, t, width)."""
        n, t, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, t, width))
        found: Tensor = x + self.inner(self.between(x))
        return found


class Reader(nn.Module):
    """A causal transformer on bytes: logits (n, t, 256) of the next one, for bytes (n, t)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.layers)))
        self.norm, self.out = nn.LayerNorm(size.width), nn.Linear(size.width, 256)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the byte after each one."""
        x = self.bytes(text) + self.places.weight[: text.shape[1]]
        logits: Tensor = self.out(self.norm(self.blocks(x)))
        return logits


# A run ------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """What is chosen on seeds that are not reported."""

    step_size: float = 1e-3
    explore: float = 0.2
    eta: float = 0.01
    workers: int = 0


class Corpus(NamedTuple):
    """The text, and what reads it."""

    train: Text
    held_out: Text
    size: Size
    device: torch.device
    settings: Settings

    def autocast(self) -> torch.autocast:
        """Half precision where there is a GPU."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def sampler(self, weights: list[float], explore: float, seed: int, steps: int) -> eq.DomainSampler:
        """Draws languages by these weights, or by λ as far as `explore` leaves room."""
        languages = self.train.languages
        return eq.DomainSampler(languages, self.size.windows, base=weights, explore=explore, steps=steps, seed=seed)

    def batches(self, sampler: eq.DomainSampler) -> Iterator[tuple[Tensor, eq.train.Draw]]:
        """Windows on the device, and what they were drawn for."""
        data = sampler.with_draws(Windows(self.train))
        pinned = self.device.type == "cuda"
        loader = DataLoader(data, batch_sampler=sampler, num_workers=self.settings.workers, pin_memory=pinned)
        for windows, draw in loader:
            moved = (x.to(self.device, non_blocking=True) for x in (windows, *draw))
            text, languages, weights = moved
            yield text.long(), eq.train.Draw(languages, weights)


def language_losses(model: nn.Module, corpus: Corpus, text: Tensor, draw: eq.train.Draw) -> tuple[Tensor, Tensor]:
    """Nats per byte of each language of a batch, and its bytes, (m,)."""
    with corpus.autocast():
        logits = model(text[:, :-1])
    return eq.token_losses(logits, text[:, 1:], draw.domain, M, weights=draw.weight)


@torch.no_grad()
def evaluate(model: nn.Module, corpus: Corpus) -> list[float]:
    """Held-out nats per byte of each language, over windows that are spread over all of its text."""
    found = []
    for number in range(M):
        windows = corpus.held_out.windows[corpus.held_out.languages == number]
        chosen = windows[torch.linspace(0, len(windows) - 1, min(corpus.size.held_out, len(windows))).long()]
        total = 0.0
        for part in chosen.split(100):
            text = part.to(corpus.device).long()
            with corpus.autocast():
                logits = model(text[:, :-1])
            total += float(cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())) * len(part)
        found.append(total / len(chosen))
    return found


def warmed(corpus: Corpus, seed: int) -> Reader:
    """A reader trained on the mean of the languages: what all methods start from."""
    torch.manual_seed(seed)
    model = Reader(corpus.size).to(corpus.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=corpus.settings.step_size, fused=corpus.device.type == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / 50, 1.0))
    sampler = corpus.sampler([1.0] * M, 1.0, seed, corpus.size.warm)
    for text, draw in corpus.batches(sampler):
        language_losses(model, corpus, text, draw)[0].mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        sampler.follow(torch.ones(M))
    return model


def method(name: str, settings: Settings) -> eq.Method:
    """The method of a row, whatever its batches are drawn by."""
    if name.startswith("equipoise"):
        # The start is a trained model: no objective needs the floor that protects it while training is young.
        return eq.default(youth=0) if "youth=0" in name else eq.default()
    return eq.group_dro([1] * M, step_size=settings.eta) if name.startswith("GroupDRO") else eq.methods()["LS"]


def train(name: str, start: Reader, corpus: Corpus, seed: int) -> dict[str, Any]:
    """Go on from a start with one method."""
    model, steps, settings = copy.deepcopy(start), corpus.size.steps, corpus.settings
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.step_size, fused=corpus.device.type == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    sizes = corpus.train.languages.bincount().double()
    weights = (sizes / sizes.sum()) ** TEMPERATURE if name == "temperature" else torch.ones(M)
    weights = weights / weights.sum()
    preference = dict(zip(LANGUAGES, weights.tolist(), strict=True))
    mol = eq.MultiObjective(model, optimizer, preference, method=method(name, settings))
    explore = settings.explore if name.endswith(", drawn") else 1.0
    sampler = corpus.sampler(weights.tolist(), explore, 1000 + seed, steps)
    curve: list[dict[str, Any]] = []
    begun = time.perf_counter()
    for number, (text, draw) in enumerate(corpus.batches(sampler)):
        scalar = mol(*language_losses(model, corpus, text, draw))
        sampler.follow(mol)
        scalar.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if number % max(steps // 40, 1) == 0:
            metrics = mol.metrics()
            losses = [metrics[f"loss/{language}"] for language in LANGUAGES]
            curve.append({"step": number, "losses": losses, "coefficients": mol.coefficients.tolist()})
    last = evaluate(model, corpus)  # waits for the device
    seconds = time.perf_counter() - begun
    with mol.solution_weights():
        solution = evaluate(model, corpus)
    mol.close()
    return {"held_out": solution, "last": last, "seconds": seconds, "curve": curve}


def run(corpus: Corpus, seeds: list[int], methods: list[str]) -> dict[str, Any]:
    """All that is found, by method and seed."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for seed in seeds:
        start = warmed(corpus, seed)
        for name in methods:
            found[name].append(train(name, start, corpus, seed))
            one = found[name][-1]
            worst, mean = max(one["held_out"]), sum(one["held_out"]) / M
            line = f"seed {seed}: {name:26} worst {worst:.4f}, mean {mean:.4f}, {one['seconds']:.1f} s"
            print(line, file=sys.stderr, flush=True)
    return {
        "languages": list(LANGUAGES),
        "windows": corpus.train.languages.bincount().tolist(),
        "parameters": sum(p.numel() for p in Reader(corpus.size).parameters()),
        "size": corpus.size._asdict(),
        "settings": corpus.settings._asdict(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if corpus.device.type == "cuda" else "cpu",
        "seeds": seeds,
        "methods": found,
    }


# What is shown ----------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{found['parameters']:,} parameters, {found['device']}, torch {found['torch']}, seeds {found['seeds']}")
    print(f"{found['size']}\n{found['settings']}")
    print("\nheld-out nats per byte, means over the starts (± standard deviation)")
    print(f"{'':27}{'worst':>16}{'mean':>8}" + "".join(f"{x:>8}" for x in found["languages"]) + f"{'seconds':>9}")
    for name, runs in found["methods"].items():
        f = torch.tensor([one["held_out"] for one in runs])
        worst = f.amax(1)
        spread = float(worst.std()) if len(worst) > 1 else 0.0
        cells = "".join(f"{x:>8.4f}" for x in f.mean(0).tolist())
        seconds = sum(one["seconds"] for one in runs) / len(runs)
        print(f"{name:27}{float(worst.mean()):>8.4f} ± {spread:.4f}{float(f.mean()):>8.4f}{cells}{seconds:>9.1f}")
    if {"GroupDRO", "equipoise, drawn", "LS"} <= found["methods"].keys():
        worsts = {k: torch.tensor([max(one["held_out"]) for one in runs]) for k, runs in found["methods"].items()}
        mean = {k: torch.tensor([one["held_out"] for one in runs]).mean() for k, runs in found["methods"].items()}
        gain = worsts["GroupDRO"] - worsts["equipoise, drawn"]
        print(f"\nworst language, GroupDRO less drawn batches, by start: {[round(x, 4) for x in gain.tolist()]}")
        print(f"mean over the languages, drawn batches less LS: {float(mean['equipoise, drawn'] - mean['LS']):.4f}")


def draw(found: dict[str, Any], path: Path) -> None:
    """The losses and coefficients of the first start over the steps, for GroupDRO, the default and drawn batches."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    names = [name for name in ("GroupDRO", "equipoise", "equipoise, drawn") if name in found["methods"]]
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    axes = figure.subplots(2, len(names), sharex=True, sharey="row", squeeze=False)
    for column, name in zip(axes.T, names, strict=True):
        curve = found["methods"][name][0]["curve"]
        steps = [one["step"] for one in curve]
        for number, language in enumerate(LANGUAGES.values()):
            column[0].plot(steps, [one["losses"][number] for one in curve], lw=1, label=language)
            column[1].plot(steps, [one["coefficients"][number] for one in curve], lw=1)
        column[0].set_title(name, color=COLOURS[name])
        column[1].set_xlabel("step")
        for axis in column:
            axis.grid(color="0.92")
    axes[0, 0].set_ylabel("nats per byte, mini-batches")
    axes[1, 0].set_ylabel("λ")
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=2, loc="lower left")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/manpages"), help="where the packages were unpacked")
    parser.add_argument("--out", type=Path, default=Path("out/languages"), help="folder for table and picture")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seeds", default="0", help="of start and batches")
    parser.add_argument("--methods", default=";".join(COLOURS), help="separated by semicolons")
    parser.add_argument("--warm", type=int, help="steps of the start")
    parser.add_argument("--steps", type=int, help="of each method after it")
    for name, default in Settings()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--no-picture", action="store_true", help="for machines without matplotlib")
    args = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = SIZES[args.size]
    size = size._replace(warm=args.warm or size.warm, steps=args.steps or size.steps)
    settings = Settings(*(getattr(args, name) for name in Settings._fields))
    corpus = Corpus(*read(args.data, size.context), size, device, settings)
    found = run(corpus, [int(seed) for seed in args.seeds.split(",")], args.methods.split(";"))
    show(found)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "languages.json").write_text(json.dumps(found))
    if not args.no_picture:
        draw(found, args.out / "languages.png")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
