-- severity: error
-- message: A bad value originated here. Bad elements at first: {value:,.0f}. No recorded input of the op is bad.
-- One row is one op output, or one tensor of scope `external`, that is bad although no recorded input of its op in the
-- same run of its graph is bad. Ops at the borders of graphs (arguments, calls, loops, reads of variables) are excluded,
-- because their values originate elsewhere. `first_nonfinite` follows the data over these borders too.
WITH history AS (
    -- One row is one op output that became bad in a graph: the first execution in which a tensor of it was bad, and the
    -- last execution in which one was good. Ops of loops are left out, because their inputs are of other iterations.
    SELECT
        run_id, executed_graph_id, call_site, graph_id, op_name, op_type, output_slot,
        min(CASE WHEN has_inf_or_nan THEN execution_index END) AS first_bad,
        max(CASE WHEN has_inf_or_nan THEN NULL ELSE execution_index END) AS last_good
    FROM tensor_health
    WHERE scope = 'graph'
        AND op_type NOT IN (
            'Enter', 'Exit', 'LoopCond', 'Merge', 'NextIteration', 'RefEnter', 'RefExit', 'RefMerge',
            'RefNextIteration', 'RefSwitch', 'Switch'
        )
    GROUP BY run_id, executed_graph_id, call_site, graph_id, op_name, op_type, output_slot
    HAVING count(CASE WHEN has_inf_or_nan THEN 1 END) > 0 AND count(execution_index) = count(*)
),
executed_input AS (
    -- One row is one input of an op of `history`, in the graph that ran. DISTINCT keeps DuckDB from joining the inputs of
    -- all ops of a graph with each other.
    SELECT DISTINCT h.*, i.source_node_name, coalesce(i.source_output_slot, 0) AS source_output_slot
    FROM history AS h
    JOIN executed_op AS n
        ON n.run_id = h.run_id AND n.executed_graph_id = h.executed_graph_id AND n.graph_id = h.graph_id
        AND n.op_name = h.op_name AND n.call_site = h.call_site
    JOIN executed_op_input AS i
        ON i.run_id = h.run_id AND i.executed_graph_id = h.executed_graph_id AND i.node_name = n.node_name
    WHERE NOT i.is_control
),
always_fed AS (
    -- One row is one op output whose bad tensors all have a bad input, because an input became bad no later than the
    -- output, and stayed bad. If a training continues with NaN, nearly all of its bad tensors are of these outputs. The
    -- joins below would need minutes for millions of tensors.
    -- The LIMIT changes no finding, because the joins below also leave these outputs out. It tells DuckDB that this table
    -- is small. Otherwise DuckDB keeps all bad tensors in memory, and compares this table with them.
    SELECT h.run_id, h.executed_graph_id, h.call_site, h.graph_id, h.op_name, h.output_slot
    FROM history AS h
    JOIN graph_op_input AS i ON i.run_id = h.run_id AND i.graph_id = h.graph_id AND i.op_name = h.op_name
    JOIN history AS s
        ON s.run_id = h.run_id AND s.graph_id = h.graph_id AND s.op_name = i.source_op_name
        AND s.output_slot = i.source_output_slot AND s.call_site IS NOT DISTINCT FROM h.call_site
        AND s.executed_graph_id IS NOT DISTINCT FROM h.executed_graph_id
    WHERE NOT i.is_control AND s.first_bad <= h.first_bad
        AND (s.last_good IS NULL OR s.last_good < s.first_bad)
    UNION
    SELECT h.run_id, h.executed_graph_id, h.call_site, h.graph_id, h.op_name, h.output_slot
    FROM executed_input AS h
    JOIN executed_op AS m
        ON m.run_id = h.run_id AND m.executed_graph_id = h.executed_graph_id AND m.node_name = h.source_node_name
    JOIN history AS s
        ON s.run_id = h.run_id AND s.executed_graph_id = h.executed_graph_id AND s.graph_id = m.graph_id
        AND s.op_name = m.op_name AND s.call_site = m.call_site AND s.output_slot = h.source_output_slot
    WHERE s.first_bad <= h.first_bad AND (s.last_good IS NULL OR s.last_good < s.first_bad)
    LIMIT 50000
),
graph_suspect AS (
    -- One row is one bad tensor of a graph that may originate here.
    SELECT
        h.run_id, h.event_index, h.step_id, h.frame_id, h.iteration, h.call_site, h.graph_id, h.op_name, h.op_type,
        h.output_slot, h.executed_graph_id, h.num_nan + h.num_neg_inf + h.num_pos_inf AS num_bad
    FROM tensor_health AS h
    LEFT JOIN always_fed AS f
        ON f.run_id = h.run_id AND f.graph_id = h.graph_id AND f.op_name = h.op_name
        AND f.output_slot = h.output_slot AND f.call_site IS NOT DISTINCT FROM h.call_site
        AND f.executed_graph_id IS NOT DISTINCT FROM h.executed_graph_id
    WHERE h.has_inf_or_nan
        AND h.scope = 'graph'
        AND f.op_name IS NULL
        AND (
            h.op_type IS NULL
            OR h.op_type NOT IN (
                'Case', 'If', 'IteratorGetNext', 'OptionalGetValue', 'PartitionedCall', 'Placeholder', 'ReadVariableOp',
                'ResourceGather', 'StatefulPartitionedCall', 'StatelessCase', 'StatelessIf', 'StatelessWhile',
                'TensorListGetItem', 'TensorListPopBack', 'TensorListStack', 'While'
            )
        )
),
eager_suspect AS (
    -- One row is one bad tensor outside graphs that may originate here.
    SELECT
        run_id, event_index, scope, execution_index, graph_id, op_name, op_type, output_slot,
        num_nan + num_neg_inf + num_pos_inf AS num_bad
    FROM tensor_health
    WHERE has_inf_or_nan
        AND scope <> 'graph'
        AND (
            op_type IS NULL
            OR op_type NOT IN (
                'Case', 'If', 'IteratorGetNext', 'OptionalGetValue', 'PartitionedCall', 'Placeholder', 'ReadVariableOp',
                'ResourceGather', 'StatefulPartitionedCall', 'StatelessCase', 'StatelessIf', 'StatelessWhile',
                'TensorListGetItem', 'TensorListPopBack', 'TensorListStack', 'While'
            )
        )
),
suspect_op AS (
    SELECT DISTINCT run_id, graph_id, op_name FROM graph_suspect
),
took AS (
    -- One row is one execution that took a bad tensor. Here and in `fed`, DISTINCT has a second purpose: it keeps engines
    -- from joining bad rows of a call with each other before joining the edges, which would take quadratic time.
    SELECT DISTINCT i.run_id, i.execution_index
    FROM execution_input AS i
    JOIN tensor_health AS a ON a.run_id = i.run_id AND a.tensor_id = i.tensor_id
    WHERE a.has_inf_or_nan AND a.scope <> 'graph'
),
fed AS (
    -- One row is one op that took a bad tensor in one run of its graph.
    SELECT DISTINCT i.run_id, i.graph_id, i.op_name, a.step_id, a.frame_id, a.iteration, a.call_site
    FROM graph_op_input AS i
    JOIN suspect_op AS o ON o.run_id = i.run_id AND o.graph_id = i.graph_id AND o.op_name = i.op_name
    JOIN tensor_health AS a
        ON a.run_id = i.run_id AND a.graph_id = i.graph_id AND a.op_name = i.source_op_name
        AND a.output_slot = i.source_output_slot
    WHERE a.has_inf_or_nan AND a.scope = 'graph' AND NOT i.is_control
),
fed_as_executed AS (
    -- The same for the edges that ran, if TensorFlow's optimizer changed the graph.
    SELECT DISTINCT
        i.run_id, i.graph_id, i.op_name, i.call_site, i.executed_graph_id, a.step_id, i.way = 'loop' AS is_any_frame,
        CASE WHEN i.way = 'loop' THEN NULL ELSE a.frame_id END AS frame_id,
        CASE i.way WHEN 'same' THEN a.iteration WHEN 'next' THEN a.iteration + 1 END AS iteration
    FROM executed_edge AS i
    JOIN suspect_op AS o ON o.run_id = i.run_id AND o.graph_id = i.graph_id AND o.op_name = i.op_name
    JOIN tensor_health AS a
        ON a.run_id = i.run_id AND a.executed_graph_id = i.executed_graph_id
        AND a.graph_id = i.source_graph_id AND a.op_name = i.source_op_name
        AND a.output_slot = i.source_output_slot AND a.call_site = i.source_call_site
    WHERE a.has_inf_or_nan AND a.scope = 'graph'
),
calls AS (
    SELECT run_id, execution_index FROM execution WHERE graph_id IS NOT NULL
),
origin AS (
    -- One row is one bad tensor without a bad input. The tensors of graphs and the others are apart, because engines keep
    -- the rows of a join in memory.
    SELECT h.run_id, h.graph_id, h.op_name, h.op_type, h.output_slot, h.event_index, h.num_bad
    FROM graph_suspect AS h
    LEFT JOIN fed
        ON fed.run_id = h.run_id
        AND fed.graph_id = h.graph_id
        AND fed.op_name = h.op_name
        AND fed.step_id IS NOT DISTINCT FROM h.step_id
        AND fed.frame_id IS NOT DISTINCT FROM h.frame_id
        AND fed.iteration IS NOT DISTINCT FROM h.iteration
        AND fed.call_site IS NOT DISTINCT FROM h.call_site
    LEFT JOIN fed_as_executed AS x
        ON x.run_id = h.run_id
        AND x.graph_id = h.graph_id
        AND x.op_name = h.op_name
        AND x.call_site = h.call_site
        AND x.executed_graph_id = h.executed_graph_id
        AND x.step_id = h.step_id
        AND (x.is_any_frame OR (x.frame_id = h.frame_id AND x.iteration = h.iteration))
    WHERE fed.op_name IS NULL
        AND x.op_name IS NULL
    UNION ALL
    SELECT h.run_id, h.graph_id, h.op_name, h.op_type, h.output_slot, h.event_index, h.num_bad
    FROM eager_suspect AS h
    LEFT JOIN took
        ON took.run_id = h.run_id AND took.execution_index = h.execution_index AND h.scope = 'execution'
    LEFT JOIN calls
        ON calls.run_id = h.run_id AND calls.execution_index = h.execution_index AND h.scope = 'execution'
    WHERE took.execution_index IS NULL
        AND calls.execution_index IS NULL
)
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    min(event_index) AS first_event_index,
    max(event_index) AS last_event_index,
    count(*) AS num_events,
    CAST(min_by(num_bad, event_index) AS DOUBLE) AS value
FROM origin
GROUP BY run_id, graph_id, op_name, op_type, output_slot
