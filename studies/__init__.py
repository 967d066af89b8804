"""Experiments on the engine, which imports none of them: the papers, the token study, continuations, the vocabulary study."""
