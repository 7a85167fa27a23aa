/*
 * importers.h - the importers of a build, in the order in which they are tried. Define
 * IMPORTER(name) for an importer without a library and IMPORTER_WITH(name, detect) for one
 * with a library, then include this file. Private.
 */
#ifdef BAGS_WITH_IMPORT_LEROBOT
IMPORTER_WITH(lerobot, bags_import_is_lerobot)
#endif
#ifdef BAGS_WITH_IMPORT_GULP
IMPORTER_WITH(gulp, bags_import_is_gulp)
#endif
#ifdef BAGS_WITH_IMPORT_ZARR
IMPORTER_WITH(zarr, bags_import_is_zarr)
#endif
IMPORTER(benzina)
#ifdef BAGS_WITH_IMPORT_WEBDATASET
IMPORTER_WITH(webdataset, bags_import_is_webdataset)
#endif
#ifdef BAGS_WITH_IMPORT_RLDS
IMPORTER_WITH(rlds, bags_import_is_rlds)
#endif
#ifdef BAGS_WITH_IMPORT_TFRECORD
IMPORTER_WITH(tfrecord, bags_import_is_tfrecord)
#endif
#ifdef BAGS_WITH_IMPORT_MDS
IMPORTER_WITH(mds, bags_import_is_mds)
#endif
#ifdef BAGS_WITH_IMPORT_HDF5
IMPORTER_WITH(hdf5, bags_import_is_hdf5)
#endif
#ifdef BAGS_WITH_IMPORT_MCAP
IMPORTER_WITH(mcap, bags_import_is_mcap)
#endif
#ifdef BAGS_WITH_IMPORT_ARROW
IMPORTER_WITH(arrow, bags_import_is_arrow)
#endif
#ifdef BAGS_WITH_IMPORT_CSV
IMPORTER_WITH(csv, bags_import_is_csv)
#endif
IMPORTER(lmdb)
IMPORTER(megatron)
IMPORTER(tokens)
IMPORTER(npy)
IMPORTER(video)
IMPORTER(images)
IMPORTER(parquet)
IMPORTER(sql)
