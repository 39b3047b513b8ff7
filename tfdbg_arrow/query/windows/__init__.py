"""Windows: a screenful out of millions of rows, by place, index or step, and series with few enough points to draw."""
