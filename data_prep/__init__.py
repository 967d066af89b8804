"""Corpora, tokenizers, segment files and lanes: everything between a folder of text and a batch. Imports no torch.

From a corpus to a store, in the order of `prepare`:

    documents.py, sources.py        documents, and where they come from; corpora/ reads them, cutting.py shortens them
    scanning.py                     each document is read once and measured
    training_sample.py              a tokenizer of tokenizers/ is trained, where one is asked for
    plan.py                         parts and fingerprints, which follow from the scan
    parts.py, segments.py           documents of a part become rows of tokens in a file
    committing.py                   parts get their names, and a split its table (document_table.py) and manifest (manifest.py)
    sharding.py                     scans and writes parts as Ray tasks

From a store to a batch:

    store.py, cache.py              token ranges of documents, verified as they are read
    lanes.py, timeline.py           which tokens of which document stand on which lane, at every step

Beside these, packing.py reads packed files and arrow_files.py writes Arrow files with checksums; verification.py checks stores,
inspection.py measures them, vocabulary.py compares tokenizers, and split_remarks.py refuses and warns.
"""
