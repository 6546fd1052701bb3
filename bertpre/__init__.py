"""bertpre: pretrain a BERT from raw text to a fine-tuned, Hub-ready encoder."""

__version__ = "0.1.0"
