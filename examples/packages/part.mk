.PHONY: release npm
release: ## write build/dist: the archive, bags.h, Python and npm packages, SHA256SUMS
	@PYTHON='$(PYTHON)' examples/packages/release.sh '$(or $(OUT),build/dist)'

NPM_FILES := $(addprefix examples/packages/npm/,index.mjs node.mjs files.mjs index.d.ts README.md) examples/viewer/reader.mjs LICENSE
NPM := build/npm/package.json
npm: ## build the npm package of the viewer's reader in build/npm
	@$(if $(WASM_CAN),$(MAKE) $(NPM),echo 'skipped $(NPM): clang and lld for wasm32, wasi-libc or python3 not found')
$(NPM): examples/packages/npm/package.json $(NPM_FILES) build/viewer.wasm examples/packages/part.mk bags.h
	@mkdir -p $(@D); echo '  NPM $(@D)'; cp $(NPM_FILES) $(@D); cp build/viewer.wasm $(@D)/bags.wasm; chmod 644 $(@D)/*
	@sed 's/^  "name": .*/&\n  "version": "$(shell sed -n 's/^.define BAGS_VERSION "\(.*\)"/\1/p' bags.h)",/' $< >$@
