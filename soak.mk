# The long run, and the field reports. Included by the Makefile.

.PHONY: check-field
check-field: setup pyz ## what went wrong elsewhere (tests/field/INDEX.md), hostile input, a short soak
	$(PYTEST) tests/field

.PHONY: soak
soak: pyz ## 100,000 jobs with random kills (FULL=1: 1,000,000); SEED=N repeats a choice
	@$(PYTHON) tools/soak.py --jobs $(if $(filter-out 0,$(FULL)),1000000,100000) $(if $(SEED),--seed $(SEED))
