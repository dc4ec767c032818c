# Crash images: `include crash.mk` in the Makefile; setup-test.sh knows what they need.

.PHONY: check-crash
check-crash: setup pyz ## at least 2,000 images of ext4 and xfs as a power cut leaves them (FULL=1: 10,000)
	$(VENV_PYTHON) -m tests.crash.bench $(if $(FULL),--full)
