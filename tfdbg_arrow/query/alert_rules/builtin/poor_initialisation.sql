-- severity: info
-- message: Its first output has a standard deviation of {value:.3g}, far from 1.
-- parameter: factor 100.0 Minimum factor by which the standard deviation is above or below 1.
-- One row is one matrix product or convolution outside gradients whose first tensor has a far too large or too small
-- spread, for example because of badly scaled initial weights or data. Needs the mode FULL_NUMERICS.
WITH firsts AS (
    SELECT
        h.run_id, h.graph_id, h.op_name, h.op_type, h.output_slot, h.event_index, h.stddev_finite, h.size,
        row_number() OVER (PARTITION BY h.run_id, h.graph_id, h.op_name, h.output_slot ORDER BY h.event_index) AS place
    FROM tensor_health AS h
    LEFT JOIN gradient_op AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id AND g.op_name = h.op_name
    WHERE h.scope = 'graph'
        AND g.op_name IS NULL
        AND h.op_type IN ('BatchMatMulV2', 'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', 'MatMul')
        AND h.stddev_finite IS NOT NULL
        AND h.size > 1
)
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    event_index AS first_event_index,
    event_index AS last_event_index,
    CAST(1 AS BIGINT) AS num_events,
    stddev_finite AS value
FROM firsts
WHERE place = 1 AND stddev_finite > 0 AND (stddev_finite >= {factor} OR stddev_finite * {factor} <= 1)
