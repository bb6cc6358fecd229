# One command each: `make demo` shows what equipoise does, `make test` checks that it does it.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
WORKERS ?= 2

# Small tensors: one thread per process, and no spinning while a thread waits. Memory that was freed is kept: giving
# it back and asking for it again costs more than a pass over a million numbers.
export GOMP_SPINCOUNT := 0
export OMP_NUM_THREADS ?= 1
export MALLOC_TRIM_THRESHOLD_ := 1000000000
export MALLOC_MMAP_THRESHOLD_ := 1000000000

.PHONY: demo test test-torch test-slow torture flower-e2e lint bench docs dist clean install

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	@echo "== 1 of 6, some 10 s: the README's picture, four methods on VLMOP2"
	$(PY) -m equipoise reproduce fig-overview
	@echo "== 2 of 6, some 5 s: the default method; w∘f is equal where a preference is met"
	$(PY) -m equipoise solve VLMOP2 --seeds 0,19,42 --json out/solved.json
	@echo "== 3 of 6, some 45 s: the paper's hypervolumes (its table 10) and its figure 2; fourteen methods, seven problems"
	@echo "   Within tolerance is: 0.001 from the paper's number; Moco 0.003, FERERO on VLMOP2 0.002, TCH and FERERO on F1 to F6 0.02."
	$(PY) -m equipoise reproduce table-hv --yes --workers $(WORKERS) --json out/table-hv.json
	$(PY) -m equipoise reproduce fig-vlmop2
	@echo "== 4 of 6, some 30 s: federated; ten clients with digits, three of them see rotated ones"
	$(PY) -m equipoise reproduce table-digits --yes --task digits-rotation --seeds 0,25 \
		--methods LS,TCH,STCH,OMDgd-TCH,AdaOMDgd-TCH,equipoise
	@echo "== 5 of 6, some seconds, from stored runs: CIFAR-10, five classes per client, where plain TCH fails"
	@echo "   Within tolerance is: two of the paper's standard deviations. The default, equipoise, is not in the paper."
	$(PY) -m equipoise reproduce table-cifar --task cifar-class5 --methods LS,TCH,STCH,AdaOMDgd-TCH,AdaOMDeg-TCH,equipoise
	@echo "== 6 of 6, some seconds: all of it on one page"
	$(PY) -m equipoise report

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The slowest of these takes half a minute.
test: lint
	$(PY) -m pytest -n $(WORKERS) -m 'not slow' -o faulthandler_timeout=300

# The core, the training loop and the solver on another torch, in an environment of its own: the oldest that pyproject.toml
# allows, or any other, as in `make test-torch TORCH=2.15.0`.
TORCH ?= 2.6.0
OTHER := .venv-torch-$(TORCH)
test-torch:
	test -x $(OTHER)/bin/python || python3 -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) numpy scipy pytest hypothesis pytest-xdist \
		safetensors scikit-learn moocore matplotlib $(shell grep -E '^(typer|rich|click)==' constraints.txt) 'torchjd[quadprog-projector]'
	PYTHONPATH=src:. $(OTHER)/bin/python -m pytest -n $(WORKERS) -m 'not slow' -p no:cacheprovider tests/contract tests/conversion \
		tests/weighting tests/train tests/metrics tests/problems tests/test_solver.py tests/test_simplex.py tests/test_state.py \
		tests/test_registry.py tests/test_units.py tests/test_theory.py tests/test_reference.py

test-slow: $(STAMP)
	$(PY) -m pytest -n $(WORKERS)

# Kills, interrupts, bit flips, hostile replies, full disks and mutants, at random; some four minutes on two idle cores.
torture: $(STAMP)
	$(PY) -m tests.torture

# The Flower app in real processes: on Ray, and deployed on loopback with things going wrong; some ten minutes.
flower-e2e: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[flower-simulation]'
	$(PY) tests/flower/e2e.py

bench: $(STAMP)
	$(PY) benchmarks/kernels.py
	$(PY) benchmarks/solver.py
	$(PY) benchmarks/federated.py --check

docs: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(VENV)/bin/mkdocs build --strict

# What a release uploads: the source and the wheel, checked.
dist: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	$(PY) -m build --outdir dist .
	$(PY) -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist out site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
