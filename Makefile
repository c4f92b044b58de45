# Two commands are all that a newcomer needs: `make demo` and `make test`. Everything else is a part of `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
ZOO := $(VENV)/zoo-installed

# Bytecode is written when a module is first imported (see --no-compile below), and kept for the processes after it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test bench bench-all gpu gates format lint types floors lengths protos unit zoo contract simulation integration hosts compose-test stubs clean

help:
	@echo "make demo   install, then train examples/char_lm on a coordinator and two workers of this machine"
	@echo "make test   install, then run every gate and every test"
	@echo "make bench  the figures of README's table beside their peers: 20 minutes, on a machine with nothing else to do"
	@echo "make compose-test   build the images of docker/ and train in containers, with podman (as root, it installs what is missing)"

$(STAMP): pyproject.toml constraints-dev.txt
	@echo "installing into $(VENV): about half a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints-dev.txt --editable '.[dev]'
	@touch $@

# Models of others, for two targets only: `make demo` does not wait for them. timm's own list of what it needs would
# bring torchvision (pyproject.toml).
$(ZOO): $(STAMP)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints-dev.txt --editable '.[dev,zoo]'
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints-dev.txt --no-deps timm
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/char_lm.py --out demo

gates: format lint floors lengths protos types

# Fast gates first. The type check and the pure tests share the cores; tests of real processes and of hosts wait most
# of the time, so they run beside each other.
test: $(ZOO) format lint floors lengths protos
	@$(MAKE) --no-print-directory --jobs 2 types unit zoo contract simulation
	@$(MAKE) --no-print-directory --jobs 2 integration hosts

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy pipesvc tests tools examples benchmarks

floors: $(STAMP)
	$(BIN)/lint-imports

lengths: $(STAMP)
	$(BIN)/python tools/lengths.py

protos: $(STAMP)
	$(BIN)/python tools/protos.py --check

# The longest of the pure ones: two files at once, each with one thread of torch for a core.
unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses 2 --dist loadfile tests/$@

# Models that many people use, small: neighbours in the list share what is followed and trained once.
zoo: $(ZOO)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses 2 --dist worksteal tests/$@

contract simulation: $(STAMP)
	$(BIN)/pytest -q tests/$@

# Real processes wait for each other most of the time, so two files run at once.
integration: $(ZOO)
	$(BIN)/pytest -q --numprocesses 2 --dist loadfile tests/$@

# Modules of benchmarks/, each in a process of its own, one after the other: a figure is worth what the quiet around it
# is. Minutes on two cores: links 3, pipeline 9, overhead 1, memory 1, beats 1, slow_networks 5, which are README's
# table; planning, replay and split_backward 2 together, codecs 4, prediction 12.
BENCH := links pipeline overhead memory beats slow_networks
BENCH_OTHERS := planning replay split_backward codecs prediction

bench: $(STAMP)
	@for each in $(BENCH); do echo "== $$each"; $(BIN)/python -m benchmarks.$$each || exit 1; done
	$(BIN)/python -m benchmarks.report

bench-all: $(STAMP)
	@for each in $(BENCH) $(BENCH_OTHERS); do echo "== $$each"; $(BIN)/python -m benchmarks.$$each || exit 1; done
	$(BIN)/python -m benchmarks.report

# For a host with GPUs, with torch's CUDA build.
gpu: $(STAMP)
	$(BIN)/pytest -q -m gpu tests

# No part of `make test`: it takes minutes, and installs podman. BASE=IMAGE, WHEELS=FOLDER: see docker/README.md.
compose-test: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints-dev.txt podman-compose
	$(BIN)/pytest -s tests/compose

# Several hosts as network namespaces: needs root and the `ip` command, else its tests are skipped and say why.
hosts: $(STAMP)
	@command -v ip >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2; } || true
	$(BIN)/pytest -q --timeout 300 tests/hosts

# Writes the stubs anew after a change of protos/.
stubs: $(STAMP)
	$(BIN)/python tools/protos.py

clean:
	rm -rf $(VENV) demo build *.egg-info docker/wheels/*.whl
