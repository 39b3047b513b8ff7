-- severity: warning
-- message: Each of its last updates is at least {value:.3g} times as large as the variable itself, by their root mean squares.
-- parameter: limit 0.5 Minimum ratio of an update that is too large.
-- parameter: min_events 5.0 Number of its last updates to examine.
-- parameter: warm_up 10.0 Number of updates before these, in which a variable that began at zero may still grow.
-- One row is one read of a variable whose last updates are all too large compared with the variable's value as read in the
-- same run of the graph. Updates are those of the view variable_update. Variables that only an optimizer or a metric reads
-- are its own state, which may change fast. If the graph reads a variable several times, it is the read whose name comes
-- first. Needs the mode FULL_NUMERICS.
WITH updates AS (
    SELECT
        u.run_id, u.graph_id, u.read_op_name AS op_name, r.op_type, u.event_index, u.op_name AS writer,
        max(u.update_rms / u.variable_rms) AS ratio
    FROM variable_update AS u
    JOIN graph_op AS r
        ON r.run_id = u.run_id AND r.graph_id = u.graph_id AND r.op_name = u.read_op_name
        AND coalesce(r.role, '') NOT IN ('optimizer', 'metric')
    WHERE u.variable_rms > 0
    GROUP BY u.run_id, u.graph_id, u.read_op_name, r.op_type, u.event_index, u.op_name
),
recent AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY run_id, graph_id, op_name, writer ORDER BY event_index DESC) AS place,
        count(*) OVER (PARTITION BY run_id, graph_id, op_name, writer) AS num_updates
    FROM updates
),
large AS (
    SELECT
        run_id, graph_id, op_name, op_type, writer,
        min(event_index) AS first_event_index,
        max(event_index) AS last_event_index,
        count(*) AS num_events,
        min(ratio) AS value
    FROM recent
    WHERE place <= {min_events} AND num_updates >= {min_events} + {warm_up}
    GROUP BY run_id, graph_id, op_name, op_type, writer
    HAVING min(ratio) >= {limit}
),
named AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, graph_id, writer ORDER BY op_name) AS name_place FROM large
)
SELECT run_id, graph_id, op_name, op_type, 0 AS output_slot, first_event_index, last_event_index, num_events, value
FROM named
WHERE name_place = 1
