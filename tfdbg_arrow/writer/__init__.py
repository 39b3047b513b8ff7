"""Recording: from TensorFlow to the Parquet files of a logdir."""
