-- severity: error
-- message: A bad value originated here. Bad elements at first: {value:,.0f}. No recorded input of the op is bad.
-- One row is one op output, or one tensor of scope `external`, that is bad although no recorded input of its op in the
-- same run of its graph is bad. Ops at the borders of graphs (arguments, calls, loops, reads of variables) are excluded,
-- because their values originate elsewhere. `first_nonfinite` follows the data over these borders too.
WITH bad AS (
    SELECT
        run_id, event_index, scope, execution_index, step_id, frame_id, iteration, call_site, graph_id, op_name, op_type,
        output_slot, tensor_id, executed_graph_id, num_nan + num_neg_inf + num_pos_inf AS num_bad
    FROM tensor_health
    WHERE has_inf_or_nan
),
took AS (
    -- One row is one execution that took a bad tensor. Here and in `fed`, DISTINCT has a second purpose: it keeps engines
    -- from joining bad rows of a call with each other before joining the edges, which would take quadratic time.
    SELECT DISTINCT i.run_id, i.execution_index
    FROM execution_input AS i
    JOIN bad AS a ON a.run_id = i.run_id AND a.tensor_id = i.tensor_id
    WHERE a.scope <> 'graph'
),
fed AS (
    -- One row is one op that took a bad tensor in one run of its graph.
    SELECT DISTINCT i.run_id, i.graph_id, i.op_name, a.step_id, a.frame_id, a.iteration, a.call_site
    FROM graph_op_input AS i
    JOIN bad AS a
        ON a.run_id = i.run_id AND a.graph_id = i.graph_id AND a.op_name = i.source_op_name
        AND a.output_slot = i.source_output_slot
    WHERE a.scope = 'graph' AND NOT i.is_control
),
fed_as_executed AS (
    -- The same for the edges that ran, if TensorFlow's optimizer changed the graph.
    SELECT DISTINCT
        i.run_id, i.graph_id, i.op_name, i.call_site, i.executed_graph_id, a.step_id, i.way = 'loop' AS is_any_frame,
        CASE WHEN i.way = 'loop' THEN NULL ELSE a.frame_id END AS frame_id,
        CASE i.way WHEN 'same' THEN a.iteration WHEN 'next' THEN a.iteration + 1 END AS iteration
    FROM executed_edge AS i
    JOIN bad AS a
        ON a.run_id = i.run_id AND a.executed_graph_id = i.executed_graph_id
        AND a.graph_id = i.source_graph_id AND a.op_name = i.source_op_name
        AND a.output_slot = i.source_output_slot AND a.call_site = i.source_call_site
    WHERE a.scope = 'graph'
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
LEFT JOIN fed
    ON fed.run_id = bad.run_id
    AND fed.graph_id = bad.graph_id
    AND fed.op_name = bad.op_name
    AND fed.step_id IS NOT DISTINCT FROM bad.step_id
    AND fed.frame_id IS NOT DISTINCT FROM bad.frame_id
    AND fed.iteration IS NOT DISTINCT FROM bad.iteration
    AND fed.call_site IS NOT DISTINCT FROM bad.call_site
    AND bad.scope = 'graph'
LEFT JOIN fed_as_executed AS x
    ON x.run_id = bad.run_id
    AND x.graph_id = bad.graph_id
    AND x.op_name = bad.op_name
    AND x.call_site = bad.call_site
    AND x.executed_graph_id = bad.executed_graph_id
    AND x.step_id = bad.step_id
    AND (x.is_any_frame OR (x.frame_id = bad.frame_id AND x.iteration = bad.iteration))
    AND bad.scope = 'graph'
LEFT JOIN took
    ON took.run_id = bad.run_id AND took.execution_index = bad.execution_index AND bad.scope = 'execution'
LEFT JOIN calls
    ON calls.run_id = bad.run_id AND calls.execution_index = bad.execution_index AND bad.scope = 'execution'
WHERE fed.op_name IS NULL
    AND x.op_name IS NULL
    AND took.execution_index IS NULL
    AND calls.execution_index IS NULL
    AND (
        bad.op_type IS NULL
        OR bad.op_type NOT IN (
            'Case', 'If', 'IteratorGetNext', 'OptionalGetValue', 'PartitionedCall', 'Placeholder', 'ReadVariableOp',
            'ResourceGather', 'StatefulPartitionedCall', 'StatelessCase', 'StatelessIf', 'StatelessWhile',
            'TensorListGetItem', 'TensorListPopBack', 'TensorListStack', 'While'
        )
    )
GROUP BY bad.run_id, bad.graph_id, bad.op_name, bad.op_type, bad.output_slot
