"""How pairs are visited: from embeddings to similarities, and from slopes back to a gradient.

Start with `reference`, the framework as the paper writes it: the `plain` path. All others give
what it gives, and never hold all pairs of a large batch. What to read, in this order:

- what is asked: `arguments`, `matrices`, `signs` (which pairs are positive or negative, block by
  block), `plan` (which path, for this size and machine), `problem`;
- the `plain` path: `rows` (similarities with the same bits everywhere), `batch`, `reference`,
  `solution`, and `pairwise_loss`, which all losses inherit from;
- the `tiles` path: `vectors` (one product, and a bound on its error), `layout` (positives as a
  list, negatives as tiles), `pair_list`, `judged`, `gradient`; then, one idea a file, `screening`
  and `hard` (the hardest pairs), `soft` (one normaliser), `anchors` and `per_anchor` (one for
  each anchor and sign), `spread` (χ²), `draws` (sampling), `active` (where most hinges are 0) and
  `kink` (where they must not be miscounted); `robust` says which of them finds which set;
- the `dense` path for small batches: `dense`, `dense_anchors`, `at_once`;
- where only exact similarities will do, some rows at a time: `strips` with `share` and
  `anchor_loss`, `anchor_shares`, `streamed`.
"""
