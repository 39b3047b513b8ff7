-- severity: warning
-- message: Its Python function was traced {value:,.0f} times: a new graph for each new shape, dtype or Python argument.
-- parameter: num_graphs 6.0 Minimum number of graphs with the same name and source line.
-- One row is one Python function that was traced repeatedly, which costs more than most training steps. The graph is the
-- last one; the events are those of its first and last tensors.
WITH traced AS (
    SELECT g.run_id, g.graph_name, s.file_path, s.lineno, max(g.graph_id) AS graph_id, count(*) AS num_graphs
    FROM graph AS g
    LEFT JOIN user_frame AS s ON s.run_id = g.run_id AND s.stack_trace_id = g.stack_trace_id
    GROUP BY g.run_id, g.graph_name, s.file_path, s.lineno
    HAVING count(*) >= {num_graphs}
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
