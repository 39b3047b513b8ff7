-- severity: warning
-- message: A finite element of magnitude {value:.4g} is within {bits:g} doublings of the largest number of its dtype.
-- parameter: bits 4.0 Maximum number of doublings from the dtype's largest number.
-- One row is one op output with a finite element that nearly overflows. Needs the mode FULL_NUMERICS.
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    min(event_index) AS first_event_index,
    max(event_index) AS last_event_index,
    count(*) AS num_events,
    max(max_abs_finite) AS value
FROM tensor_health
WHERE max_abs_finite * power(CAST(2 AS DOUBLE), {bits}) >= CASE dtype
    WHEN 'float16' THEN CAST(65504 AS DOUBLE)
    WHEN 'bfloat16' THEN CAST(3.3895313892515355e38 AS DOUBLE)
    WHEN 'float32' THEN CAST(3.4028234663852886e38 AS DOUBLE)
    WHEN 'complex64' THEN CAST(3.4028234663852886e38 AS DOUBLE)
    WHEN 'float64' THEN CAST(1.7976931348623157e308 AS DOUBLE)
    WHEN 'complex128' THEN CAST(1.7976931348623157e308 AS DOUBLE)
    WHEN 'float8_e5m2' THEN CAST(57344 AS DOUBLE)
    WHEN 'float8_e4m3fn' THEN CAST(448 AS DOUBLE)
END
GROUP BY run_id, graph_id, op_name, op_type, output_slot
