-- One row is one recorded tensor of an op of gradient_op.
--   every column of graph_tensor
SELECT h.*
FROM graph_tensor AS h
JOIN gradient_op AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id AND g.op_name = h.op_name
