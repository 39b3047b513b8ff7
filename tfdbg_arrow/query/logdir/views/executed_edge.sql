-- One row is one data edge of a graph as it ran after TensorFlow's optimizer changed it; only with `graphs='executed'`.
-- Up to 6 nodes that TensorFlow inserts at the borders of calls, branches and loops are skipped. With 16, Spark takes
-- minutes for a small logdir. `tensor_input` has no such limit.
--   run_id, executed_graph_id  the optimized graph
--   graph_id, op_name, call_site  the op that takes the tensor, as named in tensor_health
--   input_index    which of its inputs, from 0
--   source_graph_id, source_op_name, source_call_site, source_output_slot  the tensor
--   way            `same`: both ran in the same frame and iteration; `next`: the tensor is from the previous iteration;
--                  `loop`: the edge leads into or out of a loop, so that the frames differ
WITH node AS (
    SELECT
        run_id, executed_graph_id, node_name, op_type, graph_id, coalesce(op_name, node_name) AS op_name, call_site,
        op_name IS NULL AND op_type IN (
            {border_types}
        ) AS is_border
    FROM executed_op
),
edge AS (
    SELECT
        i.run_id, i.executed_graph_id, i.node_name, i.input_index, i.source_node_name,
        coalesce(i.source_output_slot, 0) AS source_output_slot, s.is_border, s.op_type
    FROM executed_op_input AS i
    JOIN node AS s
        ON s.run_id = i.run_id AND s.executed_graph_id = i.executed_graph_id AND s.node_name = i.source_node_name
    WHERE NOT i.is_control
),
level_0 AS (
    SELECT
        e.run_id, e.executed_graph_id, n.graph_id, n.op_name, n.call_site, e.input_index, e.source_node_name,
        e.source_output_slot, e.is_border, e.op_type, 'same' AS way
    FROM edge AS e
    JOIN node AS n ON n.run_id = e.run_id AND n.executed_graph_id = e.executed_graph_id AND n.node_name = e.node_name
    WHERE NOT n.is_border AND n.graph_id IS NOT NULL
)
{repeat 6}
, level_{n} AS (
    SELECT DISTINCT
        l.run_id, l.executed_graph_id, l.graph_id, l.op_name, l.call_site, l.input_index, e.source_node_name,
        e.source_output_slot, e.is_border, e.op_type,
        CASE
            WHEN l.way = 'loop' OR l.op_type IN ({frame_types}) THEN 'loop'
            WHEN l.way = 'next' OR l.op_type IN ({next_types}) THEN 'next'
            ELSE 'same'
        END AS way
    FROM level_{n-1} AS l
    JOIN edge AS e
        ON e.run_id = l.run_id AND e.executed_graph_id = l.executed_graph_id AND e.node_name = l.source_node_name
    WHERE l.is_border
        AND (
            l.op_type IN ({merge_types})
            OR e.input_index = CASE WHEN l.op_type = 'IdentityN' THEN l.source_output_slot ELSE 0 END
        )
)
{end}
SELECT DISTINCT
    l.run_id,
    l.executed_graph_id,
    l.graph_id,
    l.op_name,
    l.call_site,
    l.input_index,
    s.graph_id AS source_graph_id,
    s.op_name AS source_op_name,
    s.call_site AS source_call_site,
    l.source_output_slot,
    l.way
FROM (
    SELECT * FROM level_0 WHERE NOT is_border
{repeat 6}
    UNION ALL
    SELECT * FROM level_{n} WHERE NOT is_border
{end}
) AS l
JOIN node AS s
    ON s.run_id = l.run_id AND s.executed_graph_id = l.executed_graph_id AND s.node_name = l.source_node_name
WHERE s.graph_id IS NOT NULL
