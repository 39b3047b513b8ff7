-- One row is one input of one tensor: the tensor from which it was computed, also across calls, loops and variables.
-- Tensors without a row in tensor_health can lie between two tensors that have one. They have rows here too: to follow
-- the data, join source_node_id with node_id. tfdbg_arrow computes the view when a
-- statement names it; the SELECT below only gives the types.
--   run_id
--   node_id        the tensor: its event_index, or a negative number for a tensor without a row, and for what a variable
--                  held after a write
--   event_index    the row of the tensor; NULL without one
--   input_index    which input of its op it is, or which result of a function, from 0; NULL if that is unknown, and for
--                  what a variable held before a write
--   source_node_id the input; NULL if it is not recorded
--   source_event_index  the row of the input; NULL without one
--   source_kind    `tensor`: an output of another op. `argument`: what the caller of a function, branch or loop passed,
--                  or the iteration before. `result`: what a function, branch or loop returned. `variable`: what a
--                  variable held, or was set to. `not recorded`: no row says what the input is
--   source_graph_id, source_op_name, source_op_type, source_output_slot  the output of an op that the input is; NULL
--                  if unknown, and for what a variable held
SELECT
    CAST(NULL AS STRING) AS run_id,
    CAST(NULL AS BIGINT) AS node_id,
    CAST(NULL AS BIGINT) AS event_index,
    CAST(NULL AS INTEGER) AS input_index,
    CAST(NULL AS BIGINT) AS source_node_id,
    CAST(NULL AS BIGINT) AS source_event_index,
    CAST(NULL AS STRING) AS source_kind,
    CAST(NULL AS BIGINT) AS source_graph_id,
    CAST(NULL AS STRING) AS source_op_name,
    CAST(NULL AS STRING) AS source_op_type,
    CAST(NULL AS INTEGER) AS source_output_slot
WHERE 1 = 0
