-- One row is one frame of one distinct stack trace, with its source location.
--   run_id, stack_trace_id, depth  identify it; depth 0 is the innermost frame
--   file_path      path of the source file
--   lineno         line number, from 1
--   func           name of the function
--   code           text of the line; NULL if the source could not be read
--   owner          `user`, `framework` or `library`
--   source_file_id the row of the file in source_file
--   colno          first character, from 1, of the expression in the line that the frame executes; NULL if unknown
--   end_colno      the character behind its last one; NULL if unknown
SELECT
    t.run_id,
    t.stack_trace_id,
    t.depth,
    f.file_path,
    f.lineno,
    f.func,
    f.code,
    f.owner,
    f.source_file_id,
    f.colno,
    f.end_colno
FROM stack_trace AS t
JOIN stack_frame AS f ON f.run_id = t.run_id AND f.stack_frame_id = t.stack_frame_id
