# Everything runs in .venv, which is made by the first target that needs it and again when its requirements change.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: study bench docs test lint format clean

study: $(READY)
	$(VENV)/bin/relpos study

bench: $(READY)
	$(VENV)/bin/relpos bench

# The pictures and tables of the docs, which a test compares with what the code draws and prints.
docs: $(READY)
	$(VENV)/bin/relpos show --docs docs/pictures --weights docs/study/tables.safetensors
	$(VENV)/bin/relpos schemes --update docs/schemes.md --update README.md

# A test computes on one thread; a process for each core.
test: $(READY)
	$(VENV)/bin/python -m pytest -n auto --dist worksteal

lint: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

format: $(READY)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/relpos/_native/*.[ch])
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
