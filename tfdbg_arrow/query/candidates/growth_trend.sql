-- Where the means of the first and last quarter, each of a seventh of all at least, lie so far apart, the standard deviation
-- is at least 0.267 times as much.
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_digest
WHERE graph_id IS NOT NULL AND num_tensors >= {min_events} AND stddev_log >= CAST(0.26 AS DOUBLE) * ln({growth})
