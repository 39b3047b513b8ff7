-- severity: error
-- message: A bad value came up here: the first time in {value:,.0f} elements. No recorded input of the op is bad.
-- One row is one op output, or one tensor from outside, that is bad while no recorded tensor that its op takes in the
-- same run of its graph is. Ops at the borders of graphs (arguments, calls, loops, reads of variables) are left out: what
-- they hold came up elsewhere. `first_nonfinite` follows the data over these borders too.
WITH bad AS (
    SELECT
        run_id, event_index, scope, execution_index, step_id, frame_id, iteration, call_site, graph_id, op_name, op_type,
        output_slot, tensor_id, num_nan + num_neg_inf + num_pos_inf AS num_bad
    FROM tensor_health
    WHERE has_inf_or_nan
),
took AS (
    -- The executions that took a bad tensor, each once: joined without that, bad rows would meet all others of their
    -- run.
    SELECT DISTINCT i.run_id, i.execution_index
    FROM execution_input AS i
    JOIN bad AS a ON a.run_id = i.run_id AND a.tensor_id = i.tensor_id
    WHERE a.scope <> 'graph'
),
fed AS (
    SELECT b.run_id, b.event_index
    FROM bad AS b
    JOIN graph_op_input AS i
        ON i.run_id = b.run_id AND i.graph_id = b.graph_id AND i.op_name = b.op_name AND NOT i.is_control
    JOIN bad AS a
        ON a.run_id = b.run_id
        AND a.graph_id = b.graph_id
        AND a.op_name = i.source_op_name
        AND a.output_slot = i.source_output_slot
        AND a.step_id IS NOT DISTINCT FROM b.step_id
        AND a.frame_id IS NOT DISTINCT FROM b.frame_id
        AND a.iteration IS NOT DISTINCT FROM b.iteration
        AND a.call_site IS NOT DISTINCT FROM b.call_site
    WHERE a.scope = 'graph' AND b.scope = 'graph'
    UNION
    SELECT b.run_id, b.event_index
    FROM bad AS b
    JOIN took AS t ON t.run_id = b.run_id AND t.execution_index = b.execution_index
    WHERE b.scope = 'execution'
),
calls AS (
    SELECT run_id, execution_index FROM execution WHERE graph_id IS NOT NULL
)
SELECT
    bad.run_id,
    bad.graph_id,
    bad.op_name,
    bad.op_type,
    bad.output_slot,
    min(bad.event_index) AS first_event_index,
    max(bad.event_index) AS last_event_index,
    count(*) AS num_events,
    CAST(min_by(bad.num_bad, bad.event_index) AS DOUBLE) AS value
FROM bad
LEFT JOIN fed ON fed.run_id = bad.run_id AND fed.event_index = bad.event_index
LEFT JOIN calls
    ON calls.run_id = bad.run_id AND calls.execution_index = bad.execution_index AND bad.scope = 'execution'
WHERE fed.event_index IS NULL
    AND calls.execution_index IS NULL
    AND (
        bad.op_type IS NULL
        OR bad.op_type NOT IN (
            'Case', 'If', 'IteratorGetNext', 'PartitionedCall', 'Placeholder', 'ReadVariableOp', 'ResourceGather',
            'StatefulPartitionedCall', 'StatelessCase', 'StatelessIf', 'StatelessWhile', 'TensorListGetItem',
            'TensorListPopBack', 'TensorListStack', 'While'
        )
    )
GROUP BY bad.run_id, bad.graph_id, bad.op_name, bad.op_type, bad.output_slot
