SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE op_type IN ('BatchMatMulV2', 'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', 'MatMul')
    AND max_size > 1
    AND NOT is_gradient
    AND (max_stddev >= {factor} OR min_stddev * {factor} <= 1)
