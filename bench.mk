# What it costs, beside its peers: `include bench.mk` in the Makefile.

.PHONY: bench
bench: pyz ## KiB, flushes and CPU a job beside its peers; root, for a loop device (QUICK=1: under a minute; BENCH_ARGS=--json)
	@PYTHON=$(PYTHON) tools/setup-bench.sh
	@build/peers/bin/python -m bench $(if $(QUICK),--quick) $(BENCH_ARGS)

.PHONY: bench-redis
bench-redis: pyz ## of these, jobs a CPU second on Redis beside RQ and a plain BLMOVE loop
	@PYTHON=$(PYTHON) tools/setup-bench.sh
	@build/peers/bin/python -m bench $(if $(QUICK),--quick) $(BENCH_ARGS) redis

.PHONY: check-flash
check-flash: setup pyz ## the write budget below a loop device, a full disk, retention, the scan cache
	$(PYTEST) tests/flash
