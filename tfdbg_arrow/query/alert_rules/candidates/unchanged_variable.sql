-- Reads of variables that may never have changed, and for each run one read of a variable that did change, if there is
-- one: the rule needs it too.
WITH reads AS (
    SELECT *, min_stddev = max_stddev AND min_square = max_square AS may_be_unchanged
    FROM derived.op_extremes
    WHERE op_type = 'ReadVariableOp' AND max_size > 1 AND max_square IS NOT NULL
),
suspects AS (
    SELECT DISTINCT run_id FROM reads WHERE may_be_unchanged AND num_tensors >= {min_events}
),
ranked AS (
    SELECT
        r.run_id, r.graph_id, r.op_name, r.op_type, r.output_slot, r.may_be_unchanged,
        row_number() OVER (PARTITION BY r.run_id, r.may_be_unchanged ORDER BY r.num_tensors, r.graph_id, r.op_name) AS place
    FROM reads AS r
    JOIN suspects AS s ON s.run_id = r.run_id
)
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM ranked
WHERE may_be_unchanged OR place = 1
