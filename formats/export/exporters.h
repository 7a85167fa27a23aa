/*
 * exporters.h - the exporters of a build. Define EXPORTER(name) for an exporter without a
 * library and EXPORTER_WITH(name, endings) for one with a library, then include this file.
 * Private.
 */
EXPORTER(webdataset)
EXPORTER(tfrecord)
EXPORTER(mds)
EXPORTER(images)
EXPORTER(csv)
EXPORTER(parquet)
#ifdef BAGS_WITH_EXPORT_HDF5
EXPORTER_WITH(hdf5, ".h5 .hdf5")
#endif
#ifdef BAGS_WITH_EXPORT_LEROBOT
EXPORTER_WITH(lerobot, "")
#endif
