"""The sink, which writes the spool into sealed Parquet parts."""
