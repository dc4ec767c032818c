# edgeq. `make help` lists the targets; `make demo` and `make test` are the two to begin with.

PYTHON ?= python3
DESTDIR ?=
PREFIX ?= /usr
INSTALL ?= install
# More arguments for pytest: make check PYTEST_ARGS="-k journal"
PYTEST_ARGS ?=

VENV_PYTHON = .venv/bin/python
PYTEST = $(VENV_PYTHON) -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)
LIBDIR = $(DESTDIR)$(PREFIX)/lib/edgeq
BINDIR = $(DESTDIR)$(PREFIX)/bin
DOCDIR = $(DESTDIR)$(PREFIX)/share/doc/edgeq
ETCDIR = $(DESTDIR)/etc
HANDLERS = send_webhook archive_log run_script
SHELL_SCRIPTS = $(wildcard overlay/usr/bin/* overlay/usr/lib/edgeq/* overlay/etc/edgeq/handlers/* overlay/etc/network/*/edgeq init.d/S* tools/*.sh .ci/run)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: pyz ## the real thing at work in a temporary folder: no root, under a minute
	@$(PYTHON) tools/demo.py

.PHONY: test
test: setup lint map pyz ## every test; installs what it needs (as root on Debian)
	$(PYTEST) tests

.PHONY: check
check: setup pyz ## unit and conformance tests, under a minute
	$(PYTEST) $(wildcard tests/unit tests/conformance)

.PHONY: check-fault
check-fault: setup pyz ## one failing call to the disk after the other, from inside and outside
	$(PYTEST) tests/fault

.PHONY: check-shell
check-shell: setup pyz ## the wrapper and the handlers under BusyBox ash
	$(PYTEST) tests/shell $(wildcard tests/unit/test_handlers.py)

.PHONY: lint
lint: setup ## flake8 and shellcheck
	$(VENV_PYTHON) -m flake8 --max-line-length 132 edgeq tools tests bench
	shellcheck -x $(SHELL_SCRIPTS)

.PHONY: map
map: ## the import graph of edgeq/ against the floors of the house style
	@$(PYTHON) tools/map.py

.PHONY: pyz
pyz: dist/edgeq ## dist/edgeq.pyz, reproducible, byte code for the minor version of $(PYTHON)
	@$(PYTHON) tools/build_pyz.py

dist/edgeq: overlay/usr/bin/edgeq tools/lean.sed
	@mkdir -p dist
	@sed -f tools/lean.sed $< >$@.new && chmod 755 $@.new && mv $@.new $@

# The folder redis/ of an installed redis-py; the tests' own by default.
REDIS_PY ?= $(wildcard .venv/lib/python3*/site-packages/redis)

.PHONY: pyz-redis
pyz-redis: ## dist/edgeq-redis.pyz: the same with redis-py inside, from REDIS_PY=DIR
	@[ -n "$(REDIS_PY)" ] || { echo "pyz-redis: give REDIS_PY=DIR, the folder redis/ of redis-py (make setup installs one)" >&2; exit 1; }
	@$(PYTHON) tools/build_pyz.py --redis "$(REDIS_PY)"

.PHONY: footprint
footprint: pyz ## start-up time, RAM, size and idleness, next to the bare interpreter
	@$(PYTHON) tools/footprint.py

.PHONY: setup
setup: ## Debian packages and .venv for the tests, as far as they are missing
	@PYTHON=$(PYTHON) tools/setup-test.sh all

# A live system keeps its settings (DESTDIR empty); an image gets the ones of this tree.
.PHONY: install
install: pyz ## lay out the device's files below DESTDIR
	umask 022 && $(INSTALL) -d -m 0755 $(LIBDIR) $(BINDIR) $(DOCDIR) $(ETCDIR)/default $(ETCDIR)/edgeq.conf.d $(ETCDIR)/edgeq/handlers $(ETCDIR)/edgeq/scripts
	$(INSTALL) -m 0755 dist/edgeq.pyz $(LIBDIR)/edgeq.pyz
	if [ -n "$(REDIS)" ]; then $(MAKE) pyz-redis && $(INSTALL) -m 0755 dist/edgeq-redis.pyz $(LIBDIR)/edgeq-redis.pyz && \
		$(INSTALL) -D -m 0644 init.d/edgeq-redis@.service $(DESTDIR)$(PREFIX)/lib/systemd/system/edgeq-redis@.service && \
		$(INSTALL) -m 0644 init.d/edgeq-supervisor.conf $(DOCDIR)/edgeq-supervisor.conf; fi
	$(INSTALL) -m 0755 overlay/usr/lib/edgeq/json-get $(LIBDIR)/json-get
	$(INSTALL) -m 0644 overlay/usr/lib/edgeq/handler.sh $(LIBDIR)/handler.sh
	$(INSTALL) -m 0755 dist/edgeq $(BINDIR)/edgeq
	$(INSTALL) -m 0755 $(HANDLERS:%=overlay/etc/edgeq/handlers/%) $(ETCDIR)/edgeq/handlers
	for conf in edgeq.conf edgeq/handlers.conf default/edgeq; do \
		if [ -n "$(DESTDIR)" ] || [ ! -e /etc/$$conf ]; then \
			$(INSTALL) -m 0644 overlay/etc/$$conf $(ETCDIR)/$$conf || exit 1; fi; done
	umask 022 && if [ -e init.d/S85edgeq ]; then $(INSTALL) -D -m 0755 init.d/S85edgeq $(ETCDIR)/init.d/S85edgeq; fi
	umask 022 && for hook in if-up.d if-down.d; do $(INSTALL) -D -m 0755 overlay/etc/network/$$hook/edgeq $(ETCDIR)/network/$$hook/edgeq || exit 1; done
	umask 022 && $(INSTALL) -D -m 0644 docs/edgeq.1 $(DESTDIR)$(PREFIX)/share/man/man1/edgeq.1
	$(INSTALL) -m 0644 $(wildcard README.md CHANGES.md LICENSE docs/*.md) $(DOCDIR)

# The larger benches: crash images, images for QEMU, the figures next to peers.
include $(sort $(wildcard *.mk))

.PHONY: clean
clean: ## remove what was built (.venv too)
	rm -rf dist build .venv .hypothesis .pytest_cache *.egg-info
	find edgeq tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
