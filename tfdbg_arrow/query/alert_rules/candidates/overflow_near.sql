SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE max_share_of_range * power(CAST(2 AS DOUBLE), {bits}) >= CAST(0.999 AS DOUBLE)
