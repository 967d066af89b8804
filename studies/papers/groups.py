"""Which presets belong to which table of the papers: how `python -m pipelines.train --help` groups them."""

GROUPS = {
    "Paper: Block-Recurrent Transformers (Hutchins et al. 2022)": {
        "pg19-*": "Table 1, all models on PG-19",
        "arxiv-*": "Table 1, on arXiv",
        "github-*": "Table 1, on GitHub",
        "pg19-*-window-*": "Table 3, windows of 128 to 512 tokens",
        "pg19-*-states-*": "Table 3, 128 to 2,048 states",
        "pg19-rec-fixed-skip-layers-*": "section 4.3, two recurrent layers",
        "pg19-rec-fixed-skip-13L": "section 4.3, a layer more without recurrence",
        "pg19-scale-*": "Table 4, 40 million to 1.3 billion parameters",
        "tiny-pg19-*": "the rows on PG-19, small enough to train on a CPU in minutes",
    },
    "Paper: Staircase Attention for Recurrent Processing of Sequences (Ju et al. 2021)": {
        "algorithm-*": "Table 1 and Figure 2, on programs",
        "walk-*": "Table 1 and Figure 2, on random walks",
        "enwik8-*": "Table 1 and Figure 2, on enwik8",
        "reddit-*": "Tables 2 and 3, on Reddit",
        "tiny-enwik8-*": "the rows on enwik8 and Reddit, with slide and rec, at a size that a CPU trains",
    },
    "Paper: Adding Recurrence to Pretrained Transformers (Yoshida et al. 2020)": {
        "wikitext-gpt2-*": "Table 1, WikiText-103, windows that overlap by 0 to 50 tokens",
        "pg19-gpt2-*": "Table 2, PG-19, windows that overlap by 0 to 200 tokens",
        "pg19-llama-*": "Table 2's windows with a Llama, which the paper does not have",
        "smollm2*": "a Llama of SmolLM2-135M's size on two cores: `paper gpt2 smollm2`",
        "pg19-mamba2*": "Table 2's books with a Mamba-2 and its State, which the paper does not have",
        "tiny-*-gpt2-*": "Tables 1 and 2 at a size that a CPU trains, from untrained weights",
    },
    "Today's recurrent models beside those of the papers (paper today table-1)": {
        "tiny-bytes-*": "all models with 576,000 parameters, on bytes",
        "pg19-mixers-*": "the mixers and hybrids with windows on PG-19, 150M and 400M parameters",
        "pg19-*rmt*": "memory tokens (RMT, ARMT) at the same sizes",
    },
}
"""As `pipelines.presets.GROUPS`: patterns of names by heading."""
