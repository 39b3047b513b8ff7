// A worker that lets dagre place the boxes of a graph. A large graph takes seconds, and the page must stay usable.
"use strict";
importScripts("vendor/dagre/dagre.min.js");

// Receives the options, nodes and edges of a layout. Answers with the same `number` and the layout from dagre.
addEventListener("message", ({ data: { number, options, nodes, edges } }) => {
  const graph = new dagre.graphlib.Graph({ multigraph: true, compound: nodes.some(({ outer }) => outer !== null) });
  graph.setGraph(options);
  for (const { name, label } of nodes) graph.setNode(name, label);
  for (const { name, outer } of nodes) if (outer !== null) graph.setParent(name, outer);
  for (const { name, from, to, label } of edges) graph.setEdge(from, to, label, name);
  dagre.layout(graph);
  postMessage({
    number,
    size: graph.graph(),
    nodes: new Map(graph.nodes().map((name) => [name, graph.node(name)])),
    edges: graph.edges().map((edge) => ({ ...graph.edge(edge), name: edge.name, from: edge.v, to: edge.w })),
  });
});
