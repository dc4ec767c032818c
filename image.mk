# Images with BusyBox init for QEMU, and the tests that boot them. Included by the Makefile.

.PHONY: image-x86_64
image-x86_64: pyz ## build/image/x86_64: a read-only root with edgeq, a kernel, for QEMU
	@$(PYTHON) tools/image.py x86_64

.PHONY: image-arm
image-arm: pyz ## the same for ARMv7
	@$(PYTHON) tools/image.py arm

.PHONY: check-image
check-image: setup pyz ## boot both, reboot, pull the plug (FULL=1: 200 power cuts); transcripts in build/image
	rm -f build/image/cuts-*.json
	$(PYTEST) tests/image
	@$(PYTHON) tools/image.py --figures

.PHONY: check-init
check-init: setup pyz ## the init script and the guard under BusyBox init, in namespaces
	$(PYTEST) tests/init
