"""Corpora, tokenizers, segment files and lanes: everything between a folder of text and a batch. Imports no torch."""
