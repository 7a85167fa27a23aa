# PKG_x are the pkg-config names of the libraries that formats/x.c needs. A format
# without one is part of libbags.

PKG_jpeg := libjpeg
PKG_png := libpng
PKG_npz := libzip
PKG_mp4 := libavformat libavcodec libswscale libavutil
PKG_msgpack := $(or $(call have,msgpack-c),$(call have,msgpack),msgpack-c)
PKG_http := libcurl libssl libcrypto
PKG_import/arrow := libzstd liblz4
PKG_import/gulp := json-c $(PKG_msgpack)
PKG_import/hdf5 := hdf5
PKG_import/mcap := libzstd liblz4 zlib
PKG_import/mds := json-c libzstd libcrypto libxxhash
PKG_import/webdataset := libarchive zlib
PKG_import/zarr := json-c blosc libzip zlib libzstd liblz4
