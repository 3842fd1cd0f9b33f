# `make demo` runs the main job, `make test` the tests. Each sets up all that it needs by itself, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CUDA machine gets verl's own tested set, every other one the CPU set.
EXTRA ?= $(if $(shell command -v nvidia-smi 2>/dev/null),gpu,cpu)
READY := $(VENV)/.ready-$(EXTRA)
UV := $(BIN)/uv

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

.PHONY: notebooks demo test check lab git-filter lint clean install doctor chromium screenshots

demo: $(READY)
	$(BIN)/memagent demo

test: $(READY) chromium
	$(BIN)/python -m pytest

# The quick part, before a commit: style, the rules of the house, and the tests that start no engine, kernel or server.
QUICK := $(wildcard tests/test_*.py) tests/repository tests/readers tests/diagnostics tests/evaluation tests/cli/test_template.py
check: lint
	$(BIN)/python -m pytest -m "not slow and not browser and not gpu" $(QUICK)

# Some tests drive a real browser, which no Python index has. Where it cannot be installed, those tests fail and say what to do.
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name >/dev/null && exit; done; \
	echo "installing Chromium for the tests in a browser"; $(AS_ROOT) sh -c '$(GET_CHROMIUM)' || true

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

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 13) else f"memagent needs Python 3.11 or 3.12 and found {v[0]}.{v[1]}; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv==0.13.8'
	$(UV) pip install $(UV_FLAGS) --quiet --compile-bytecode --python $(BIN)/python --editable '.[$(EXTRA),dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "runs/ is kept: it holds your results. Remove it by hand when you want to."
