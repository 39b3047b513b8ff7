"""A dashboard of one run: where and when it went bad, and what the gradient did until then. It needs Streamlit.

    pip install streamlit duckdb
    tfdbg-arrow export --duckdb /tmp/logdir /tmp/logdir.duckdb
    streamlit run examples/dashboard.py --server.address=127.0.0.1 -- /tmp/logdir.duckdb

The queries are those of docs/bi.md, from which the dashboard reads them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import altair as alt
import duckdb
import pandas as pd
import streamlit as st

PAGE = Path(__file__).resolve().parents[1] / "docs" / "bi.md"
QUESTIONS = dict(re.findall(r"^### (.*?)$.*?^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S))
RED = "#c62828"
SHARE = alt.Scale(domain=[0, 1], range=["#f0f2f4", RED], interpolate="rgb")


def answer(database: duckdb.DuckDBPyConnection, question: str, run_id: str | None = None) -> pd.DataFrame:
    """Returns the rows of a question of docs/bi.md, for all runs or for one."""
    rows = database.sql(QUESTIONS[question]).df()
    return rows if run_id is None else rows[rows.run_id == run_id].drop(columns="run_id")


def heat_map(cells: pd.DataFrame, places: list[str]) -> alt.Chart:
    """Returns a chart with a cell for each place and step; the first place is at the top."""
    cells = cells.assign(bad_share=cells.num_bad / cells.num_tensors)
    return (
        alt.Chart(cells, height=alt.Step(22))
        .mark_rect()
        .encode(
            x=alt.X("step:O", title="training step", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("place:N", title=None, sort=places, axis=alt.Axis(labelLimit=300)),
            color=alt.Color("bad_share:Q", title="bad tensors", scale=SHARE).legend(format="%"),
            tooltip=["place", "step", "num_bad", "num_tensors"],
        )
    )


def gradient_chart(norms: pd.DataFrame) -> alt.LayerChart:
    """Returns a chart of the norm by step on a logarithmic scale, with a red line for each step with bad gradients."""
    step = alt.X("step:Q", title="training step", scale=alt.Scale(nice=False))
    norm = alt.Y("gradient_norm:Q", title="gradient norm", scale=alt.Scale(type="log"))
    healthy = norms[norms.num_bad == 0]
    line = alt.Chart(healthy).mark_line(point=True).encode(x=step, y=norm, tooltip=["step", "gradient_norm"])
    bad = (
        alt.Chart(norms[norms.num_bad > 0])
        .mark_rule(color=RED, opacity=0.5)
        .encode(x=step, tooltip=["step", "num_bad"])
    )
    return line + bad


def first_bad_values(first: pd.DataFrame) -> pd.DataFrame:
    """Returns the table of the first bad value of each place, with titles to read."""
    titles = {
        "step": "step",
        "place": "layer",
        "op": "op",
        "dtype": "dtype",
        "num_nan": "NaN",
        "num_inf": "Inf",
        "size": "elements",
        "num_bad": "bad tensors in all",
    }
    return first.assign(op=first.op.str.split("/").str[-1])[[*titles]].rename(columns=titles)


def main(path: str) -> None:
    """Shows the database that `tfdbg-arrow export --duckdb` wrote."""
    st.set_page_config(page_title="What happened here?", layout="wide")
    with duckdb.connect(path, read_only=True) as database:
        runs = answer(database, "When did each run make its first bad value?")
        run_id = st.selectbox("What happened in the run", runs.run_id, index=int(runs.num_bad.argmax()))
        first = answer(database, "Which layer went bad first?", run_id)
        cells = answer(database, "How many tensors are bad, by layer and step?", run_id).dropna(subset="step")
        norms = answer(database, "How large is the gradient in each step?", run_id).dropna(subset="step")
    if first.empty:
        st.success("No recorded tensor of this run holds a NaN or an infinity.")
    else:
        origin = first.iloc[0]
        num_nan, num_inf = first[["num_nan", "num_inf"]].fillna(0).iloc[0]  # the mode CURT_HEALTH has no counts
        kind = "NaN" if num_nan > 0 else "infinity" if num_inf > 0 else "bad value"
        when = "before the first step" if pd.isna(origin.step) else f"in step **{origin.step:.0f}**"
        st.error(f"The first {kind} came up in **{origin.place}** {when}, in the op `{origin.op}`.")
    st.subheader("Bad tensors by layer and step")
    st.caption(
        "The layers are in the order in which they went bad. A cell is the share of the layer's tensors that are bad."
    )
    st.altair_chart(heat_map(cells, [*first.place, *sorted(set(cells.place) - set(first.place))]))
    left, right = st.columns([2, 3])
    left.subheader("Gradient norm by step")
    left.caption("A red line is a step whose gradients hold a NaN or an infinity.")
    if norms.gradient_norm.isna().all():
        left.info("The run holds no gradient norms: they need the mode FULL_NUMERICS, graphs and steps.")
    else:
        left.altair_chart(gradient_chart(norms))
    right.subheader("First bad value of each layer")
    right.caption("Below the first row, bad values have usually spread from the rows above.")
    right.dataframe(first_bad_values(first), hide_index=True)


main(sys.argv[1])
