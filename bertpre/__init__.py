"""bertpre: pretrain a BERT from raw text to a fine-tuned, Hub-ready encoder."""

from bertpre.model.registration import register_classes

__version__ = "0.1.0"

register_classes()
