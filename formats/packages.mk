# PKG_x are the pkg-config names of the libraries that x.c needs, in formats/ or a folder of
# it. A format without one is part of libbags.

PKG_jpeg := libjpeg
PKG_png := libpng
PKG_webp := libwebp
PKG_mp4 := libavformat libavcodec libswscale libavutil
PKG_msgpack := $(or $(call have,msgpack-c),$(call have,msgpack),msgpack-c)
PKG_zstd := libzstd
PKG_sql := sqlite3
PKG_http := libcurl libssl libcrypto
# Other files of the same library.
PARTS_http := aws credentials known listing lookup objects pace request s3 sources transfer url version
PARTS_mp4 := mp4_cache mp4_packets
PARTS_cuda := cuda_video
PARTS_loader := convert crop frames opening state
PKG_import/arrow := libzstd liblz4
PKG_import/csv := zlib
PKG_import/gulp := json-c $(PKG_msgpack)
PKG_import/hdf5 := hdf5
PKG_import/lerobot := json-c
PKG_import/mcap := json-c libzstd liblz4 zlib
PKG_import/mds := json-c libzstd libcrypto libxxhash
PKG_import/rlds := json-c zlib
PKG_import/tfrecord := zlib
PKG_import/webdataset := libarchive zlib
PKG_export/hdf5 := hdf5
PKG_export/lerobot := json-c
PKG_import/zarr := json-c blosc libzip zlib libzstd liblz4

FORMAT_FILES := $(filter-out %/import.c %/export.c,$(wildcard formats/*.c formats/*/*.c))
# The folders are not in the names of formats, but import/ and export/ are.
in_folders = $(foreach f,$1,formats/$f.c formats/load/$f.c formats/storage/$f.c formats/data/$f.c)
ALL_FORMATS := $(filter-out $(PARTS_http) $(PARTS_mp4) $(PARTS_cuda) $(PARTS_loader),$(foreach f,$(FORMAT_FILES:formats/%.c=%),$(if $(filter import/% export/%,$f),$f,$(notdir $f))))
FOUND := $(foreach f,$(ALL_FORMATS),$(if $(PKG_$f),$(if $(call have,$(PKG_$f)),$f),$f))
FORMATS := $(FOUND)
BUILT := $(foreach f,$(ALL_FORMATS),$(if $(and $(PKG_$f),$(filter-out $(FORMATS),$f)),,$f))
MISSING := $(filter-out $(BUILT),$(ALL_FORMATS))

# Modules: the formats that need a library. The command opens libbags-mp4.so when it needs
# it. If MODULES is empty, as on other systems than Linux, it is linked with all.
MODULES := $(if $(LINUX),$(foreach f,$(BUILT),$(if $(PKG_$f),$f)))
ABI := $(shell sed -n 's/^.define BAGS_VERSION "\(.*\)\..*"/\1/p' bags.h)
shared = $B/libbags-$(subst /,-,$1).so.$(ABI)
SHARED := $(foreach f,$(MODULES),$(call shared,$f))
, := ,
