.PHONY: release
release: ## write build/dist: the archive, bags.h, Python and npm packages, SHA256SUMS
	@PYTHON='$(PYTHON)' examples/packages/release.sh '$(or $(OUT),build/dist)'
