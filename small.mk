# Small boards: included by the Makefile.

.PHONY: check-small
check-small: setup pyz ## a read-only root with a trimmed Python, on every minor at hand (FULL=1: Debian's newest too)
	$(PYTEST) tests/small

.PHONY: trimmed
trimmed: pyz ## how small Python gets: bytes of one with what edgeq needs, x86_64 and ARM
	@$(PYTHON) tools/trim.py
