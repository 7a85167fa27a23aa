# `make install`: see install.sh.
.PHONY: install install-built uninstall
# What make has built stays as it is: with other flags, it is built in another directory.
INSTALL_B = $(shell if [ ! -e $B/flags ] || echo '$(SETTINGS)' | cmp -s - $B/flags; then echo $B; else echo build/install; fi)
install: ## install everything; PREFIX, LIBDIR and DESTDIR set the directories, FORMATS='jpeg png' selects formats
	$(BUILD) install-built B=$(INSTALL_B)
install-built: $B/pic/bags.o $(SHARE:%=$B/%) $(foreach f,$(BUILT),$(call of_format,$B,$f)) $(INSTALLED)
	@formats/install.sh install $B '$(CC) $(CFLAGS) $(LDFLAGS)' '$(LIBS)' '$(INSTALLED)' $(foreach f,$(BUILT),'$f:$(call of_format,$B,$f):$(strip $(PKG_$f))')

uninstall: ## remove the installed files; needs the same PREFIX, LIBDIR and DESTDIR
	@formats/install.sh uninstall $(ALL_FORMATS)
