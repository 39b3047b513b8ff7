-- severity: warning
-- message: Its largest magnitude grew by a factor of {value:,.4g} from the first quarter of its tensors to the last.
-- parameter: growth 100.0 Minimum growth factor.
-- parameter: min_events 8.0 Minimum number of tensors.
-- One row is one op output whose largest magnitude, as a geometric mean over each quarter of its tensors, keeps growing.
-- Ops of optimizers and metrics are left out: what they accumulate grows from zero in a healthy run, too.
-- Needs the mode FULL_NUMERICS.
WITH quarters AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, event_index, ln(max_abs_finite) AS magnitude,
        ntile(4) OVER (PARTITION BY run_id, graph_id, op_name, output_slot ORDER BY event_index) AS quarter
    FROM tensor_health
    WHERE scope = 'graph' AND max_abs_finite > 0
),
means AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot,
        min(event_index) AS first_event_index,
        max(event_index) AS last_event_index,
        count(*) AS num_events,
        avg(CASE WHEN quarter = 1 THEN magnitude END) AS q1,
        avg(CASE WHEN quarter = 2 THEN magnitude END) AS q2,
        avg(CASE WHEN quarter = 3 THEN magnitude END) AS q3,
        avg(CASE WHEN quarter = 4 THEN magnitude END) AS q4
    FROM quarters
    GROUP BY run_id, graph_id, op_name, op_type, output_slot
)
SELECT
    m.run_id,
    m.graph_id,
    m.op_name,
    m.op_type,
    m.output_slot,
    m.first_event_index,
    m.last_event_index,
    m.num_events,
    exp(m.q4 - m.q1) AS value
FROM means AS m
LEFT JOIN recorded_op AS r ON r.run_id = m.run_id AND r.graph_id = m.graph_id AND r.op_name = m.op_name
WHERE m.num_events >= {min_events}
    AND m.q4 - m.q1 >= ln({growth})
    AND m.q2 >= m.q1
    AND m.q3 >= m.q2
    AND m.q4 >= m.q3
    AND coalesce(r.role, '') NOT IN ('optimizer', 'metric')
