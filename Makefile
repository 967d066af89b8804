# Every target makes .venv itself when it is missing or stale. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
ENV := .venv/.complete
RUN := .venv/bin/python
ROOT ?= runs

.PHONY: demo test test-long test-cluster test-documents check docs ui bench environment
environment: $(ENV)

$(ENV): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Prepare the standard library's source as bytes, train rec and slide, evaluate both, draw their curves, and say where to look.
demo: $(ENV)
	$(RUN) -m pipelines.prepare python-source --tokenizer bytes --store '$(ROOT)/store'
	$(RUN) -m pipelines.train demo-rec --root '$(ROOT)' --data.store '$(ROOT)/store'
	$(RUN) -m pipelines.train demo-slide --root '$(ROOT)' --data.store '$(ROOT)/store'
	$(RUN) -m pipelines.compare '$(ROOT)/demo-rec' '$(ROOT)/demo-slide'
	$(RUN) -m pipelines.evaluate '$(ROOT)/demo-slide' '$(ROOT)/demo-rec' --clear states --lanes 4

# Three at once on two cores, since Ray is waited for; after a crash xdist would wait for ever, were a worker started again.
PYTEST := $(RUN) -m pytest -q -n 3 --dist loadgroup --max-worker-restart 0
test: $(ENV)
	$(PYTEST) -m "not long"

# Kills, sweeps, whole pipelines and compiled C++, of 10 seconds and more each.
test-long: $(ENV)
	$(PYTEST) -m long

# Two machines made of namespaces: `ray up cluster.yaml`, every stage on them. Needs root, iproute2, openssh-server, rsync.
test-cluster: $(ENV)
	THROUGHLINE_TEST_CLUSTER=1 $(RUN) -m pytest -q -m cluster tests/cluster

# The site, and every command of the documents on small data.
test-documents: docs
	THROUGHLINE_TEST_DOCUMENTS=1 $(RUN) -m pytest -q -m documents tests/test_every_command.py

check: $(ENV)
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/pyrefly check
	.venv/bin/codespell
	$(RUN) docs/prose.py

# The site, readable offline: build/docs/docs/index.html. A broken link is an error.
docs: $(ENV)
	.venv/bin/sphinx-build -q -W --keep-going -b html -c docs . build/docs
	@echo "open build/docs/docs/index.html"

# MLflow's pages on the runs below ROOT, at the address that it prints.
ui: $(ENV)
	$(RUN) -m pipelines.ui --root '$(ROOT)'

bench: $(ENV)
	$(RUN) -m benchmarks.step_time
	$(RUN) -m benchmarks.pipeline_cost
