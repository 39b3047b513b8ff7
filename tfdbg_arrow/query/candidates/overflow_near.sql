-- An eager op, whose dtype is not known here, is held against the smallest of the ranges.
SELECT d.run_id, d.graph_id, d.op_name, d.op_type, d.output_slot
FROM derived.op_digest AS d
LEFT JOIN graph_op_output AS o
    ON o.run_id = d.run_id AND o.graph_id = d.graph_id AND o.op_name = d.op_name AND o.output_slot = d.output_slot
WHERE d.max_magnitude * power(CAST(2 AS DOUBLE), {bits}) >= CASE o.dtype
    WHEN 'float16' THEN CAST(65504 AS DOUBLE)
    WHEN 'bfloat16' THEN CAST(3.3895313892515355e38 AS DOUBLE)
    WHEN 'float32' THEN CAST(3.4028234663852886e38 AS DOUBLE)
    WHEN 'complex64' THEN CAST(3.4028234663852886e38 AS DOUBLE)
    WHEN 'float64' THEN CAST(1.7976931348623157e308 AS DOUBLE)
    WHEN 'complex128' THEN CAST(1.7976931348623157e308 AS DOUBLE)
    WHEN 'float8_e5m2' THEN CAST(57344 AS DOUBLE)
    ELSE CAST(448 AS DOUBLE)
END
