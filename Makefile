PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test soak lint browser

demo: .venv
	$(BIN)/python -m ppmn.demo

test: .venv lint
	$(BIN)/python -m pytest
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	echo "The browser tests did not run: there is no chromium (make browser installs it)."

browser:
	command -v chromium || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium)

soak: .venv
	$(BIN)/python -m pytest -m soak

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,serve,onnx,supervision,dev]'
	touch .venv
