"""How pairs are visited: from embeddings to similarities, and from slopes back to a gradient.

Start with `reference`, the framework as the paper writes it.
"""
