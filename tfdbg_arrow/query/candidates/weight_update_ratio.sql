-- Both the value that is added and the variable as it is read. The factor allows for rounding.
WITH pairs AS (
    SELECT DISTINCT
        w.run_id, w.graph_id,
        w_value.source_op_name AS u_name, w_value.source_output_slot AS u_slot,
        r.op_name AS v_name
    FROM graph_op AS w
    JOIN graph_op_input AS w_resource
        ON w_resource.run_id = w.run_id AND w_resource.graph_id = w.graph_id AND w_resource.op_name = w.op_name
        AND w_resource.input_index = 0 AND NOT w_resource.is_control
    JOIN graph_op_input AS w_value
        ON w_value.run_id = w.run_id AND w_value.graph_id = w.graph_id AND w_value.op_name = w.op_name
        AND w_value.input_index = 1 AND NOT w_value.is_control
    JOIN graph_op_input AS r_resource
        ON r_resource.run_id = w.run_id AND r_resource.graph_id = w.graph_id
        AND r_resource.source_op_name = w_resource.source_op_name AND NOT r_resource.is_control
    JOIN graph_op AS r
        ON r.run_id = w.run_id AND r.graph_id = w.graph_id AND r.op_name = r_resource.op_name
        AND r.op_type = 'ReadVariableOp'
    WHERE w.op_type IN ('AssignAddVariableOp', 'AssignSubVariableOp')
),
large AS (
    SELECT p.run_id, p.graph_id, p.u_name, p.u_slot, p.v_name
    FROM pairs AS p
    JOIN derived.op_digest AS u
        ON u.run_id = p.run_id AND u.graph_id = p.graph_id AND u.op_name = p.u_name AND u.output_slot = p.u_slot
    JOIN derived.op_digest AS v
        ON v.run_id = p.run_id AND v.graph_id = p.graph_id AND v.op_name = p.v_name AND v.output_slot = 0
    WHERE u.max_square >= CAST(0.999 AS DOUBLE) * {limit} * {limit} * v.min_square
)
SELECT d.run_id, d.graph_id, d.op_name, d.op_type, d.output_slot
FROM derived.op_digest AS d
JOIN (
    SELECT run_id, graph_id, u_name AS op_name, u_slot AS output_slot FROM large
    UNION
    SELECT run_id, graph_id, v_name AS op_name, 0 AS output_slot FROM large
) AS l ON l.run_id = d.run_id AND l.graph_id = d.graph_id AND l.op_name = d.op_name AND l.output_slot = d.output_slot
