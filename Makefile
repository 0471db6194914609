PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test soak lint

demo: .venv
	$(BIN)/python -m ppmn.demo

test: .venv lint
	$(BIN)/python -m pytest

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
