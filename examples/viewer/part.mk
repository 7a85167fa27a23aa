# The viewer: a single HTML file. Building it needs clang and lld with wasm32, wasi-libc, and
# python3. make viewer CLANG=clang-16 chooses another compiler. zstd(...) fields need libzstd's
# source. `tests/deps.sh check` downloads it; ZSTD_SOURCE=DIR names another directory.

CLANG ?= clang
VIEWER := build/viewer.html
WASM_BUILTINS = $(firstword $(wildcard $(shell $(CLANG) -print-resource-dir 2>/dev/null)/lib/wasi/libclang_rt.builtins-wasm32.a))
WASM_CAN = $(and $(WASM_BUILTINS),$(wildcard /usr/include/wasm32-wasi),$(shell command -v wasm-ld || command -v wasm-ld-14),$(shell command -v python3))
ZSTD_SOURCE ?= build/libzstd
WASM_ZSTD := $(if $(wildcard $(ZSTD_SOURCE)/lib/decompress/zstd_decompress.c),$(ZSTD_SOURCE))
WASM_FLAGS = --target=wasm32-wasi --sysroot=/usr -mexec-model=reactor $(filter -I.% -Iformats%,$(INCLUDES)) -Oz -std=gnu11 -DNDEBUG \
    -Wall -Wextra -Wshadow -Wno-unused-function -Werror -fvisibility=hidden -ffile-prefix-map='$(CURDIR)'=. \
    $(if $(WASM_ZSTD),-DVIEWER_ZSTD -I$(WASM_ZSTD)/lib)

.PHONY: viewer install-viewer uninstall-viewer
viewer: ## build build/viewer.html: one page that shows any dataset in a browser
	@$(if $(WASM_CAN),$(MAKE) $(VIEWER),echo 'skipped $(VIEWER): clang and lld for wasm32, wasi-libc or python3 not found')

build/viewer.wasm: examples/viewer/viewer.c examples/bags/curve.h formats/storage/archive.c formats/numpy.c formats/data/index_find.c bags.h $(wildcard formats/*.h formats/*/*.h) examples/viewer/part.mk \
    $(if $(WASM_ZSTD),examples/viewer/wasm/zstd_decoder.c formats/zstd.c $(WASM_ZSTD))
	@mkdir -p $(@D); echo '  CC $@'; $(CLANG) $(WASM_FLAGS) $(filter %.c,$^) -o $@ -Wl,--export-dynamic,--gc-sections,--strip-all,--max-memory=1073741824 \
	    -nodefaultlibs -lc $(WASM_BUILTINS)
	@! command -v wasm-opt >/dev/null || wasm-opt -Oz $@ -o $@
$(VIEWER): build/viewer.wasm $(addprefix examples/viewer/,assemble.py page.html style.css reader.mjs values.mjs episode.mjs view.mjs) $(if $(WASM_ZSTD),$(WASM_ZSTD)/LICENSE)
	@echo '  VIEWER $@$(if $(WASM_ZSTD),, without zstd: `tests/deps.sh check` gets its source)'; examples/viewer/assemble.py $@ $^

install: install-viewer
install-viewer: viewer
	@[ ! -f $(VIEWER) ] || { install -d '$(DESTDIR)$(or $(PREFIX),/usr/local)/share/bags' && \
	    install -m 644 $(VIEWER) '$(DESTDIR)$(or $(PREFIX),/usr/local)/share/bags' && echo 'installed viewer.html'; }
uninstall: uninstall-viewer
uninstall-viewer:
	@rm -f '$(DESTDIR)$(or $(PREFIX),/usr/local)/share/bags/viewer.html'
	@rmdir '$(DESTDIR)$(or $(PREFIX),/usr/local)/share/bags' 2>/dev/null || :
