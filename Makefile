# `make demo` and `make test` set everything up by themselves; only Python 3.11+ is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# timm and torchvision stand apart: torchvision does not match a CPU build of torch, and others stumble over it.
VISION := $(VENV)/vision
# Recreated whenever what we depend on changes.
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint format bench reproduce-paper reproduce-mnist reproduce-baselines reproduce-cifar10 reproduce-attack clean

$(STAMP): pyproject.toml setup.py src/smoothcert/_grid_kernel.c constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade --target $(VISION) timm torchvision
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/smoothcert demo

# Two processes, a file of tests in one of them: half the time, and the tests of a file share what they have made. One
# thread each: threads that wait for each other actively take the cores from those that have work.
test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# ART is a peer, not a part: it stands apart, with what it needs and we do not have.
PEERS := $(VENV)/peers
bench: $(STAMP)
	test -d $(PEERS)/art || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --target $(PEERS) adversarial-robustness-toolbox six statsmodels patsy
	$(BIN)/python benchmarks/everything.py

# The paper's tables and figures from what was published, in a minute: nothing is fetched that is there already. The
# photographs for its pictures of noise are given by IMAGES=folder.
reproduce-paper: $(STAMP)
	$(BIN)/smoothcert data fetch cohen2019
	$(BIN)/smoothcert data fetch cohen2019-votes
	$(BIN)/smoothcert data fetch cifar10 --split test
	$(BIN)/python reproduce/tables.py
	$(BIN)/python reproduce/figures.py $(if $(IMAGES),--images "$(IMAGES)")

# Hours on a laptop; goes on where it was cut off. MNIST must be there: smoothcert data fetch mnist
reproduce-mnist: $(STAMP)
	$(BIN)/python reproduce/mnist.py

# MNIST, and Figures 7 and 13 of the paper on CIFAR-10, of which the network of Wong et al. is fetched. RESNET=path
# uses a ResNet-56 trained before (σ = 0.25), which saves the longest of its trainings.
reproduce-baselines: $(STAMP)
	$(BIN)/smoothcert data fetch wong2018
	$(BIN)/python reproduce/baselines.py $(if $(RESNET),--resnet "$(RESNET)")

reproduce-cifar10: $(STAMP)
	$(BIN)/python reproduce/cifar10.py

# Trains a ResNet-56 first, unless a trained one is given by NETWORK=folder.
reproduce-attack: $(STAMP)
	$(BIN)/python reproduce/attack_cifar10.py $(if $(NETWORK),--network "$(NETWORK)")

clean:
	rm -rf $(VENV) build dist demo-output .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
