-- One row is one op of a graph that TensorFlow's optimizer changed before it ran; only with `graphs='executed'`.
--   run_id, graph_id, graph_name, op_name, op_type  the op in the program
--   layer, role     the Keras layer or module of the op, and its purpose; NULL if not recorded
--   fate            `ran`: a node of the op's type ran; `folded`: its output was computed in advance, as a constant;
--                   `replaced`: a node of another type computes its output; `absorbed`: it has no node, because other
--                   nodes compute it, or because nothing needs it
--   executed_type   for `folded` and `replaced`, the type that ran; if there are several, the first by name
--   num_nodes       number of nodes that compute its outputs, over all call sites and optimized graphs
SELECT
    o.run_id,
    o.graph_id,
    g.graph_name,
    o.op_name,
    o.op_type,
    o.layer,
    o.role,
    CASE
        WHEN count(e.node_name) = 0 THEN 'absorbed'
        WHEN max(CASE WHEN e.op_type = o.op_type OR e.op_type IN ({argument_types}) THEN 1 ELSE 0 END) = 1 THEN 'ran'
        WHEN max(CASE WHEN e.op_type <> 'Const' THEN 1 ELSE 0 END) = 0 THEN 'folded'
        ELSE 'replaced'
    END AS fate,
    min(CASE WHEN e.op_type <> o.op_type AND e.op_type NOT IN ({argument_types}) THEN e.op_type END) AS executed_type,
    count(e.node_name) AS num_nodes
FROM graph_op AS o
JOIN (SELECT DISTINCT run_id, graph_id FROM executed_op) AS x ON x.run_id = o.run_id AND x.graph_id = o.graph_id
LEFT JOIN graph AS g ON g.run_id = o.run_id AND g.graph_id = o.graph_id
LEFT JOIN executed_op AS e ON e.run_id = o.run_id AND e.graph_id = o.graph_id AND e.op_name = o.op_name
GROUP BY o.run_id, o.graph_id, g.graph_name, o.op_name, o.op_type, o.layer, o.role
