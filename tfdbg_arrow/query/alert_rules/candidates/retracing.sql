-- key: graph
-- The rule finds only the last graph of a name and line. Its name is one that many graphs have.
WITH named AS (
    SELECT run_id, graph_name FROM graph GROUP BY run_id, graph_name HAVING count(*) >= {num_graphs}
)
SELECT g.run_id, g.graph_id, d.op_name, d.op_type, d.output_slot
FROM named AS n
JOIN graph AS g ON g.run_id = n.run_id AND g.graph_name = n.graph_name
LEFT JOIN derived.op_extremes AS d ON d.run_id = g.run_id AND d.graph_id = g.graph_id
