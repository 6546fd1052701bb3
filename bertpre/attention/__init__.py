"""The mechanisms that lead to BERT, each small and exact: what the notebooks teach with. Imports only torch.

Read them in this order: `dot_product` (weights from a dot product), `scores` (other ways to compare), `heads` (many of
them), `recurrent` (attention before transformers), `transformer` (the block, and what is built from it).

Shapes: B batch, S sequence (of queries), T sequence (of keys), H heads, D head dim, E hidden, V vocabulary. Leading
dimensions may be left out or added where a docstring writes `...`. Masks are bool: True where attention is allowed.
"""
