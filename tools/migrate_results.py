"""Move result cells of formats 1 and 2, whose settings were named by `repr`, to format 3, and pack them:

    git checkout 256504a -- docs/results/cells    # the last commit that has them
    python tools/migrate_results.py docs/results/cells src/equipoise/experiments/published.jsonl.xz

Says what became of every group of cells. Cells of the former default on CIFAR-10 are left out: half of them were
relabelled by hand when a setting was added. Cells that no table of this version asks for are left out too.
"""  # noqa: D415

import ast
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise import federated, problems, simplex, transform, weighting
from equipoise.experiments.default import settings as default
from equipoise.experiments.federated import rows, settings
from equipoise.experiments.federated.settings import Run
from equipoise.experiments.results import Cell, pack
from equipoise.identity import digest
from equipoise.identity import spec as identity

KNOWN: dict[str, Any] = {"AgileEntropic": default.AgileEntropic}
for module in (weighting, eq, problems, simplex, transform, federated):
    KNOWN |= {name: of for name, of in vars(module).items() if isinstance(of, type)}


def built(text: str) -> Any:
    """The object of a `repr`: calls of known classes with plain values, nothing else."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return KNOWN[node.func.id](
                *map(value, node.args), **{k.arg: value(k.value) for k in node.keywords if k.arg}
            )
        if isinstance(node, ast.Name) and node.id == "inf":
            return float("inf")
        if isinstance(node, ast.Tuple):
            return tuple(map(value, node.elts))
        return ast.literal_eval(node)

    return value(ast.parse(text, mode="eval").body)


def new_spec(old: dict[str, Any]) -> dict[str, Any]:
    """The specification of format 3."""
    parts = {
        key: identity(built(of)) for key, of in old.items() if key in {"task", "weighting", "transform", "problem"}
    }
    if "conversion" in old:
        parts["conversion"] = identity(built(old["conversion"]))
    if "outputs" in old:
        parts["outputs"] = {name: identity(built(of)) for name, of in old["outputs"].items()}
    return {**old, **parts}


def keyed(spec: dict[str, Any]) -> str:
    return digest({key: of for key, of in spec.items() if key != "seed"})


def labels() -> dict[str, dict[str, str]]:
    """What the tables of this version call their cells, by specification without the seed."""
    jobs: dict[str, Run] = {}
    for preset in ("published", "text"):
        wanted = [*rows.rows(tuple(settings.tasks(preset)), rows.ALL, preset)]
        wanted += [one for name in rows.GROUPS if name != "table-text" for one in rows.wanted(name, preset)]
        for job in (replace(one, precision=precision) for one in wanted for precision in (None, "float32")):
            key = keyed(job.spec(0))
            known = jobs[key].rows if key in jobs else ()
            jobs[key] = replace(jobs.get(key, job), shared=tuple(dict.fromkeys((*known, *job.rows))))
    found = {key: job.labels for key, job in jobs.items()}
    for name in default.names_of_problems():
        for row in default.rows(name):
            found[keyed(default.cell_spec(name, row))] = {"task": name, "method": row.name, "output": row.answer}
    return found


def added(folder: Path) -> dict[str, tuple[str, str]]:
    """The commit that added every file, and its date."""
    command = ["git", "log", "--diff-filter=A", "--name-only", "--format=@%h %as", "--", str(folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, commit = dict[str, tuple[str, str]](), ("", "")
    for line in text.splitlines():
        if line.startswith("@"):
            commit = (line[1:].split()[0], line.split()[1])
        elif line:
            found.setdefault(Path(line).name, commit)
    return found


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    names, commits = labels(), added(source)
    cells, said = [], Counter[str]()
    for path in sorted(source.glob("*.json")):
        old = json.loads(path.read_text())
        spec, result = new_spec(old["spec"]), dict(old["result"])
        kind = f"{spec['experiment']}, format {old.get('format', 1)}"
        if keyed(spec) not in names:
            said[f"{kind}: left out, no table asks for it ({old['spec']['weighting'][:60]})"] += 1
            continue
        commit, day = commits.get(path.name, ("", ""))
        made = {
            "equipoise": eq.__version__,
            "commit": commit,
            "torch": "",
            "device": str(result.pop("device", "x86_64")),
            "date": str(result.pop("date", day)),
            "migrated": f"from format {old.get('format', 1)}",
        }
        cells.append(Cell(spec, result, names[keyed(spec)], made))
        said[f"{kind}: migrated"] += 1
    count = pack(cells, target)
    for line, number in sorted(said.items()):
        print(f"{number:5} {line}")
    print(f"{count:5} cells in {target}, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
