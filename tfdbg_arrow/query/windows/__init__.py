"""Windows: a screenful of millions of rows, by position, index or step, and series with few enough points to draw."""
