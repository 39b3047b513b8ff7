"""The sink: from the spool to sealed Parquet parts."""
