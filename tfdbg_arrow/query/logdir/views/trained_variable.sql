-- One row is one op of a graph that changes a variable, with one op of the graph that reads the variable. Changes depend on
-- the content before: additions, and updates of optimizers. An op that only replaces the content has no row.
--   run_id, graph_id, op_name, op_type  the op that changes the variable
--   variable_op_name  the op of the graph from which it takes the variable
--   read_op_name   the op that reads the variable
--   added_op_name, added_output_slot  the tensor that it adds or subtracts; NULL if it computes that from a state
--   rate_op_name, rate_output_slot  the scalar by which it multiplies the tensor before; NULL if there is none
WITH edge AS (
    SELECT run_id, graph_id, op_name, input_index, source_op_name, coalesce(source_output_slot, 0) AS source_output_slot
    FROM graph_op_input
    WHERE NOT is_control
),
changing AS (
    SELECT o.run_id, o.graph_id, o.op_name, o.op_type, t.value_index, t.rate_index
    FROM graph_op AS o
    LEFT JOIN ({adding}) AS t ON t.op_type = o.op_type
    WHERE t.op_type IS NOT NULL OR {is_optimizer}
),
-- DISTINCT keeps DuckDB from joining the inputs of all ops of a graph with each other.
reading AS (
    SELECT DISTINCT
        c.run_id, c.graph_id, c.op_name, c.op_type, c.value_index, c.rate_index,
        v.source_op_name AS variable_op_name, r.op_name AS read_op_name
    FROM changing AS c
    JOIN edge AS v ON v.run_id = c.run_id AND v.graph_id = c.graph_id AND v.op_name = c.op_name AND v.input_index = 0
    JOIN edge AS i ON i.run_id = c.run_id AND i.graph_id = c.graph_id AND i.source_op_name = v.source_op_name
    JOIN graph_op AS r
        ON r.run_id = c.run_id AND r.graph_id = c.graph_id AND r.op_name = i.op_name AND r.op_type = 'ReadVariableOp'
)
SELECT
    c.run_id,
    c.graph_id,
    c.op_name,
    c.op_type,
    c.variable_op_name,
    c.read_op_name,
    a.source_op_name AS added_op_name,
    a.source_output_slot AS added_output_slot,
    f.source_op_name AS rate_op_name,
    f.source_output_slot AS rate_output_slot
FROM reading AS c
LEFT JOIN edge AS a
    ON a.run_id = c.run_id AND a.graph_id = c.graph_id AND a.op_name = c.op_name AND a.input_index = c.value_index
LEFT JOIN edge AS f
    ON f.run_id = c.run_id AND f.graph_id = c.graph_id AND f.op_name = c.op_name AND f.input_index = c.rate_index
