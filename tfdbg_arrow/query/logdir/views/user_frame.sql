-- One row is the innermost frame of the user's own code in one stack trace; a stack without such a frame has no row.
--   run_id, stack_trace_id  identify it
--   depth          its position in the stack; 0 is the innermost frame of all
--   file_path      path of the source file
--   lineno         line number, from 1
--   func           name of the function
--   code           text of the line; NULL if the source could not be read
--   colno          first character, from 1, of the expression in the line that the frame executes; NULL if unknown
--   end_colno      the character behind its last one; NULL if unknown
SELECT
    s.run_id,
    s.stack_trace_id,
    s.depth,
    s.file_path,
    s.lineno,
    s.func,
    s.code,
    s.colno,
    s.end_colno
FROM stack AS s
JOIN (
    SELECT run_id, stack_trace_id, min(depth) AS depth
    FROM stack
    WHERE owner = 'user'
    GROUP BY run_id, stack_trace_id
) AS u ON u.run_id = s.run_id AND u.stack_trace_id = s.stack_trace_id AND u.depth = s.depth
