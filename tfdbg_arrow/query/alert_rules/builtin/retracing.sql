-- severity: warning
-- message: Its Python function was traced {value:,.0f} times, nearly once per call: a new graph for each new shape, dtype or Python argument.
-- parameter: num_graphs 6.0 Minimum number of graphs with the same name and source line.
-- parameter: max_calls 2.0 Maximum number of calls for each graph. A trace that serves more calls is worth its cost.
-- One row is one Python function that eager code calls and that was traced for nearly each call, which costs more than most
-- training steps. Graphs that eager code does not call, as those of data sets, do not count. The graph is the last one; the
-- events are those of its first and last tensors.
WITH called AS (
    SELECT run_id, graph_id, count(*) AS num_calls FROM execution WHERE graph_id IS NOT NULL GROUP BY run_id, graph_id
),
traced AS (
    SELECT g.run_id, g.graph_name, s.file_path, s.lineno, max(g.graph_id) AS graph_id, count(*) AS num_graphs
    FROM graph AS g
    JOIN called AS c ON c.run_id = g.run_id AND c.graph_id = g.graph_id
    LEFT JOIN user_frame AS s ON s.run_id = g.run_id AND s.stack_trace_id = g.stack_trace_id
    GROUP BY g.run_id, g.graph_name, s.file_path, s.lineno
    HAVING count(*) >= {num_graphs} AND sum(c.num_calls) <= {max_calls} * count(*)
)
SELECT
    t.run_id,
    t.graph_id,
    CAST(NULL AS STRING) AS op_name,
    CAST(NULL AS STRING) AS op_type,
    CAST(NULL AS INTEGER) AS output_slot,
    min(h.event_index) AS first_event_index,
    max(h.event_index) AS last_event_index,
    count(h.event_index) AS num_events,
    CAST(t.num_graphs AS DOUBLE) AS value
FROM traced AS t
LEFT JOIN tensor_health AS h ON h.run_id = t.run_id AND h.graph_id = t.graph_id
GROUP BY t.run_id, t.graph_id, t.num_graphs
