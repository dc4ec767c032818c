# edgeq for boards without Python: included by the Makefile.

.PHONY: binary
binary: setup pyz ## dist/edgeq-x86_64 and dist/edgeq-arm: the program with its interpreter, by PyInstaller (ARM under qemu-user)
	@$(VENV_PYTHON) tools/binary.py

.PHONY: check-binary
check-binary: setup pyz ## both tried with BusyBox and libc only: every verb in a root, then a machine in QEMU: kill, power cut, recover
	$(PYTEST) -rA tests/small/try_binary.py
