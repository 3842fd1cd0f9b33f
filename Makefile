# `make demo` runs the main job, `make test` the tests. Each first installs what it needs into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CUDA machine gets verl's own tested set, every other one the CPU set.
EXTRA ?= $(if $(shell command -v nvidia-smi 2>/dev/null),gpu,cpu)
READY := $(VENV)/.ready-$(EXTRA)
UV := $(BIN)/uv
UV_VERSION := 0.13.8
ABOUT_cpu := about 320 Python packages (PyTorch, vLLM, verl, Ray, MLflow, JupyterLab), about 1 GB to download and 4.8 GB on disk, 2 minutes or more
ABOUT_gpu := about 370 Python packages (PyTorch and vLLM for CUDA, verl, Ray, MLflow, JupyterLab), several GB to download and 15 GB or more on disk

AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo --non-interactive)
APT := apt-get --quiet --quiet --option Acquire::http::Timeout=20
GET_CHROMIUM := $(APT) update && DEBIAN_FRONTEND=noninteractive $(APT) install --yes --no-install-recommends chromium fonts-dejavu-core

# A CPU build of torch comes from a folder of wheels where pip is told of one, else from torch's own CPU index, whose
# address uv knows. The uv overrides in pyproject.toml are for the CPU set only.
ifeq ($(EXTRA),cpu)
  ifneq ($(wildcard $(addsuffix /torch-*+cpu-*.whl,$(PIP_FIND_LINKS))),)
    export UV_FIND_LINKS := $(PIP_FIND_LINKS)
  else
    export UV_TORCH_BACKEND ?= cpu
  endif
else
  UV_FLAGS := --no-config
endif
# pip's settings for a private index hold for uv too.
ifneq ($(PIP_INDEX_URL),)
  export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.PHONY: notebooks demo prose gpu test test-all check lab git-filter lint clean install wheel constraints newest doctor chromium screenshots

demo: $(READY)
	$(BIN)/memagent demo

# A pre-trained model on real prose: this machine's readings on the study's figure; experiments/studies/prose/README.md.
PROSE := experiments/studies/prose
prose: $(READY)
	$(BIN)/memagent model smollm2
	$(BIN)/memagent sweep $(PROSE)/show.toml
	@cat runs/prose/show/accuracy.csv
	@echo "figure  " && $(BIN)/python -m experiments.studies.prose runs/prose/show/results
	@echo "page     runs/prose/show/reading.html"
	@echo "memories runs/prose/show/memory.html"

# The first quarter of an hour on a machine with a GPU; the script as a whole has never run on one.
gpu: $(READY)
	experiments/studies/speed/gpu.sh

# Two files of tests side by side, in half the time and up to 10 GB of memory; make test WORKERS=0 runs one at a time.
WORKERS ?= 2
test: $(READY) chromium
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile

# All tests: also real engines at length, trainings killed and resumed, installations, notebooks on their defaults.
test-all: $(READY) chromium
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile -m "not gpu" --timeout=3600

# The quick part, before a commit: style, the rules of the house, and the tests that start no engine, kernel or server.
QUICK := $(wildcard tests/test_*.py) tests/repository tests/readers tests/diagnostics tests/evaluation tests/cli/test_template.py
check: lint
	$(BIN)/python -m pytest -m "not slow and not browser and not gpu" $(QUICK)

# Some tests drive a real browser, which no Python index has. Where it cannot be installed, those tests fail and say what to do.
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name >/dev/null && exit; done; \
	echo "Installing Chromium, a system package of 360 MB, for the tests that drive a browser. This happens once."; \
	$(AS_ROOT) sh -c '$(GET_CHROMIUM)' >/dev/null || true

# Notebooks 01 to 08 in order on their defaults, in an empty checkout: a quarter of an hour or more on 2 cores.
# make notebooks CHECKOUT=FOLDER keeps the checkout there; once more, it continues after the last notebook that ended.
notebooks: $(READY)
	$(BIN)/python -m pytest -m chain --exitfirst --durations=8 $(if $(CHECKOUT),--checkout="$(CHECKOUT)") tests/notebooks/test_notebook_chain.py

# make lab LAB="--port 8890"
lab: $(READY)
	$(BIN)/memagent lab $(LAB)

# Outputs of notebooks stay in the files and out of diffs and commits; `git add -u` then clears `git status` of them.
git-filter: $(READY)
	git config filter.notebooks.clean '$(abspath $(BIN))/nbstripout --keep-id --extra-keys metadata.language_info'

# The README's pictures of the workbench, on what the last `make demo` left.
screenshots: $(READY) chromium
	$(BIN)/python -m pytest tests/browser/test_first_hour.py --figures notebooks/pictures

lint: $(READY)
	$(BIN)/ruff check memagent_lib experiments tests
	$(BIN)/ruff format --check memagent_lib experiments tests

doctor: $(READY)
	$(BIN)/memagent doctor

install: $(READY)

# dist/ gets a wheel and a source archive, whose names have the version of the last tag and commit.
wheel: $(UV)
	$(UV) build --quiet --out-dir dist
	@ls -1t dist | head -n 2

CONSTRAINTS := memagent_lib/constraints
NO_INDEX := { echo "Packages come from an index (PyPI, or the one that PIP_INDEX_URL names) or from the folder that PIP_FIND_LINKS names; the reason is above." >&2; exit 1; }
$(READY): pyproject.toml $(CONSTRAINTS)/$(EXTRA).txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 13) else f"memagent needs Python 3.11 or 3.12 and found {v[0]}.{v[1]}; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@echo "Installing into $(VENV): $(ABOUT_$(EXTRA)). This happens once."
	@$(MAKE) --no-print-directory $(UV)
	@$(UV) pip install $(UV_FLAGS) --quiet --compile-bytecode --python $(BIN)/python \
		--constraints $(CONSTRAINTS)/$(EXTRA).txt --editable '.[$(EXTRA),dev]' || $(NO_INDEX)
	@touch $@

$(UV):
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)' || $(NO_INDEX)

# The exact versions of each set, from the ranges in pyproject.toml. Versions that still fit stay; UPGRADE=--upgrade
# takes the newest. What all sets have in common gets the versions of the CPU set, the most constrained one that is tested.
COMPILE = $(UV) pip compile pyproject.toml --quiet --no-annotate --custom-compile-command "make constraints" \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28 $(UPGRADE)
constraints: $(UV)
	$(COMPILE) --extra cpu --extra dev --output-file $(CONSTRAINTS)/cpu.txt
	$(COMPILE) --no-config --constraints $(CONSTRAINTS)/cpu.txt --output-file $(CONSTRAINTS)/plain.txt
	env -u UV_FIND_LINKS -u UV_TORCH_BACKEND $(COMPILE) --no-config --constraints $(CONSTRAINTS)/plain.txt \
		--extra gpu --extra dev --output-file $(CONSTRAINTS)/gpu.txt

# The tests with the newest versions that resolve together, in a clone of the last commit below build/. Tests that compare
# versions with VERSIONS.md fail there, and so list what has moved. make newest NEWEST=check runs the quick part only.
NEWEST ?= test
newest:
	rm -rf build/newest && git clone --quiet --depth 1 "file://$(CURDIR)" build/newest
	$(MAKE) -C build/newest constraints UPGRADE=--upgrade
	$(MAKE) -C build/newest $(NEWEST)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "runs/ is kept: it holds your results. Remove it by hand when you want to."
