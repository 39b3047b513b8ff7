-- severity: warning
-- message: All elements of its {value:,.0f} tensors are zero, although its inputs are not.
-- parameter: min_events 10.0 Minimum number of tensors.
-- One row is one matrix product, convolution, or sum with a bias that only ever held zeros although none of its recorded
-- inputs did: nothing passes there. Zeros elsewhere are normal: masks, labels, initial states, the gradients of values that
-- were not selected.
WITH zero AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot,
        min(event_index) AS first_event_index, max(event_index) AS last_event_index, count(*) AS num_events
    FROM tensor_health
    WHERE scope = 'graph' AND num_zero IS NOT NULL AND size > 1
    GROUP BY run_id, graph_id, op_name, op_type, output_slot
    HAVING min(CASE WHEN num_zero = size THEN 1 ELSE 0 END) = 1
),
fed AS (
    SELECT DISTINCT i.run_id, i.graph_id, i.op_name
    FROM graph_op_input AS i
    JOIN zero AS z
        ON z.run_id = i.run_id AND z.graph_id = i.graph_id AND z.op_name = i.source_op_name
        AND z.output_slot = i.source_output_slot
    WHERE NOT i.is_control
)
SELECT
    z.run_id,
    z.graph_id,
    z.op_name,
    z.op_type,
    z.output_slot,
    z.first_event_index,
    z.last_event_index,
    z.num_events,
    CAST(z.num_events AS DOUBLE) AS value
FROM zero AS z
LEFT JOIN fed AS f ON f.run_id = z.run_id AND f.graph_id = z.graph_id AND f.op_name = z.op_name
WHERE f.op_name IS NULL
    AND z.op_type IN (
        'BatchMatMulV2', 'BiasAdd', 'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', 'Einsum', 'MatMul', '_FusedConv2D',
        '_FusedMatMul'
    )
    AND z.num_events >= {min_events}
