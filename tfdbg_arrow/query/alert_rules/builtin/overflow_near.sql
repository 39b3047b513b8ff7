-- severity: warning
-- message: A finite element of magnitude {value:.4g} is within {bits:g} doublings of the largest number of its dtype.
-- parameter: bits 4.0 Maximum number of doublings from the dtype's largest number.
-- One row is one op output with a finite element that nearly overflows. A number that the program wrote itself, as into
-- the mask of an attention, is no evidence: constants, tensors from outside, and outputs of the same graph that have the
-- magnitude of one of them, except for rounding, are excluded. So are gradients in graphs with an IsFinite, which scale
-- the loss as far as the dtype allows. Needs the mode FULL_NUMERICS.
WITH large AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, dtype, event_index, max_abs_finite,
        CASE WHEN op_type IS NULL OR op_type IN ('Const', 'Placeholder', 'ReadVariableOp', '_Arg') THEN 1 ELSE 0 END AS is_written
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
),
written AS (
    SELECT DISTINCT run_id, dtype, max_abs_finite FROM large WHERE is_written = 1
),
scaled AS (
    SELECT DISTINCT g.run_id, g.graph_id, g.op_name
    FROM gradient_op AS g
    JOIN graph_op AS t ON t.run_id = g.run_id AND t.graph_id = g.graph_id AND t.op_type = 'IsFinite'
)
SELECT
    h.run_id,
    h.graph_id,
    h.op_name,
    h.op_type,
    h.output_slot,
    min(h.event_index) AS first_event_index,
    max(h.event_index) AS last_event_index,
    count(*) AS num_events,
    max(h.max_abs_finite) AS value
FROM large AS h
LEFT JOIN scaled AS s ON s.run_id = h.run_id AND s.graph_id = h.graph_id AND s.op_name = h.op_name
WHERE h.is_written = 0
    AND s.op_name IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM written AS w
        WHERE w.run_id = h.run_id AND w.dtype = h.dtype
            AND h.max_abs_finite BETWEEN w.max_abs_finite * CAST(0.99 AS DOUBLE) AND w.max_abs_finite * CAST(1.01 AS DOUBLE)
    )
GROUP BY h.run_id, h.graph_id, h.op_name, h.op_type, h.output_slot
