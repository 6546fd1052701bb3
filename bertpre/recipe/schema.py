"""The recipe's schema: every key, its type, its default and what it means."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


def check_duration(value: str) -> str:
    """The duration as it is written; raises ValueError where `seconds` cannot read it."""
    seconds(value)
    return value


Lasting = Annotated[str, AfterValidator(check_duration)]


class Section(BaseModel):
    """A part of the recipe; a key it does not know is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", validate_default=True)


class Source(Section):
    """A part of the pretraining text."""

    path: str  # a Hub id, a local file or folder, or `sample` for the embedded corpus
    name: str | None = None  # the configuration of a Hub dataset, e.g. 20231101.en
    split: str = "train"  # several are joined by +: train+unsupervised
    text_column: str = "text"
    limit: Count | None = None  # only the first documents of each split
    text_unit: Literal["line", "paragraph", "document"] = "line"  # what a document is in a .txt file
    streaming: bool = False  # read a Hub dataset from the network, without a copy on the disk
    weight: Rate = 1.0  # 0.25: a quarter of the documents, drawn by the seed; 3: an epoch goes three times through them

    @field_validator("weight")
    @classmethod
    def check_weight(cls, value: float) -> float:
        if value > 1 and value % 1:
            raise ValueError("a weight is a share of the documents, up to 1, or a whole number of passes")
        return value


class Corpus(Source):
    """Where the pretraining text comes from."""

    more: list[Source] = []  # further sources; their documents are mixed with the others in training
    held_out: str | None = None  # texts dropped wherever they occur: a split of `path`, or a file, ./test.csv
    min_characters: Count = 1  # shorter documents are dropped
    near_duplicates: bool = False  # drop them too, not only equal documents; needs the extra `dedup`


class Prepare(Section):
    """How the corpus is worked through; changes no byte of the result."""

    engine: Literal["local", "ray"] = "local"  # ray: all of a cluster; needs the extra `ray`
    workers: Count | None = None  # local processes; none: as many as there are cores


class Tokenizer(Section):
    """The WordPiece vocabulary: learned from the corpus, or an existing one."""

    path: str | None = None  # an existing tokenizer, as a folder or Hub id; nothing is learned then
    vocab_size: Annotated[int, Field(ge=64)] = 30528
    lowercase: bool = True
    strip_accents: bool | None = None  # é becomes e; none: where lowercase is true, as google's uncased models


class Pairs(Section):
    """How documents become segment pairs (Devlin et al. 2018, section 3.1 and appendix A.1)."""

    kind: Literal["nsp", "sop", "none"] = "nsp"  # next sentence; order of segments; none: sentences packed full
    short_seq_prob: Share = 0.1
    random_next_prob: Share = 0.5  # sop: of swapped segments
    validation_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.01  # of the documents, never trained on


class Model(Section):
    """The encoder's architecture and size."""

    architecture: Literal["bert", "modern"] = "bert"
    hidden_size: Count = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: Count = 3072
    max_position_embeddings: Count = 512
    hidden_dropout_prob: Dropout = 0.1
    attention_probs_dropout_prob: Dropout = 0.1


class Phase(Section):
    """A part of pretraining at one sequence length."""

    share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the whole of training
    max_length: Annotated[int, Field(ge=8)] = 128  # tokens in a pair, special tokens included
    micro_batch_size: Count | None = (
        None  # pairs in one forward pass of one process; none: as many as fit the global batch
    )
    global_batch_size: Count | None = None  # in place of training.global_batch_size


class Training(Section):
    """The pretraining loop."""

    init: str | None = None  # go on from this model: a folder or Hub id of bertpre, bert or modernbert
    max_steps: Count | None = None  # training ends at whichever of the three comes first
    max_tokens: Count | None = None  # padding not counted
    budget: Lasting | None = None  # wall clock, e.g. 45m; the last evaluation is within it
    global_batch_size: Count = 256  # pairs an optimizer step, over all processes
    phases: Annotated[list[Phase], Field(min_length=1)] = [Phase()]
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"  # fp16: for GPUs that do not multiply bf16
    compile: Literal["auto"] | bool = "auto"
    deterministic: Literal["auto"] | bool = "auto"  # bit-identical on the same machine; auto: on CPUs
    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    learning_rate: Rate = 1e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    muon_learning_rate: Rate = 0.02  # of the hidden matrices, where optimizer is muon
    muon_weight_decay: Annotated[float, Field(ge=0)] = 0.1  # of the same; far lower, the first layer drowns the rest
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    max_grad_norm: Rate = 1.0
    schedule: Literal["linear", "cosine", "trapezoid"] = "linear"
    warmup: Share = 0.01  # share of the training during which the rate rises
    decay: Annotated[float, Field(gt=0, le=1)] = 0.5  # trapezoid: share of the training during which it falls to zero
    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    masked_lm_prob_end: Annotated[float, Field(gt=0, lt=1)] | None = None  # the rate falls evenly to this one
    masking: Literal["tokens", "words", "spans"] = "tokens"  # what is chosen; spans are of whole words
    mask_split: tuple[Share, Share, Share] = (0.8, 0.1, 0.1)  # targets that show [MASK], a random token, themselves
    log_every: Count = 20
    eval_every: Count = 500
    eval_pairs: Count = 1024
    wandb_project: str | None = None
    tensorboard: bool = False  # event files too; needs the extra `tensorboard`
    price_per_hour: Rate | None = None  # of the machine; the log then shows what the run has cost

    @model_validator(mode="after")
    def check(self) -> "Training":
        if self.masked_lm_prob_end is not None and self.masked_lm_prob_end > self.masked_lm_prob:
            raise ValueError("masked_lm_prob_end must not be above masked_lm_prob")
        if abs(sum(self.mask_split) - 1) > 1e-6:
            raise ValueError("the three shares of mask_split must add up to 1")
        if abs(sum(phase.share for phase in self.phases) - 1) > 1e-6:
            raise ValueError("the shares of the phases must add up to 1")
        return self


class Checkpoint(Section):
    """What is saved on the way, so that a killed run goes on where it was."""

    every: Count = 1000  # steps
    keep: Count = 2  # the newest
    keep_every: Lasting | None = None  # of the older ones, the first in each stretch of this much training, e.g. 6h


METRICS = {  # the first one chooses the best epoch where the recipe does not say
    "classification": ("accuracy", "f1", "matthews", "loss"),
    "multi_label": ("f1", "accuracy", "loss"),
    "regression": ("pearson", "spearman", "loss"),
    "tokens": ("f1", "accuracy", "loss"),
}


class Unlabelled(Section):
    """Texts without labels, which NB-SVM, taught by the labelled ones, labels for the network."""

    path: str | None = None  # none: finetune.path
    split: str = "train"
    limit: Count | None = None
    held_out: str | None = None  # texts left out: a split of finetune.path, e.g. test, or a file, ./test.csv
    max_length: Annotated[int, Field(ge=8)] | None = None  # none: finetune.max_length


class Finetune(Section):
    """The labelled examples and how a model is trained on them."""

    path: str  # as corpus.path
    name: str | None = None
    split: str = "train"
    task: Literal["classification", "multi_label", "regression", "tokens"] = "classification"
    text_column: str = "text"  # tokens: words, as a list or with spaces between them
    text_pair_column: str | None = None  # of the second sentence
    label_column: str | Annotated[list[str], Field(min_length=2)] = "label"  # several: one of 0 and 1 for each label
    label_names: list[str] | None = None  # the classes, in order; none: the dataset's own names, or the values found
    limit: Count | None = None
    unlabelled: Unlabelled | None = None  # learn from these texts too
    init: str = "pretrained"  # this run's model; `random` for no pretraining; or the folder or Hub id of any encoder
    epochs: Count = 3
    min_steps: Count | None = None  # more epochs where there are fewer steps in `epochs`: for few examples
    batch_size: Count = 32  # examples an optimizer step, over all processes
    micro_batch_size: Count | None = None  # examples in one forward pass of one process, for want of memory; none: all
    max_length: Annotated[int, Field(ge=8)] = 256
    truncation: Literal["head", "tail", "head_tail"] = (
        "head_tail"  # head_tail: a quarter from the start, the rest from the end
    )
    pooling: Literal["cls", "mean"] = "cls"
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: Rate = 3e-5  # of AdamW
    muon_learning_rate: Rate = 5.0e-3  # of the hidden matrices
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the rate, from each layer to the one below it
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup: Share = 0.1
    dropout: Dropout = 0.1  # before the last linear layer
    encoder_dropout: Dropout | None = None  # in the encoder's layers; none: as in pretraining
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    class_weights: Literal["balanced"] | list[Rate] | None = None  # of the losses; balanced: 1 / how often each occurs
    validation_fraction: Annotated[float, Field(ge=0, lt=0.5)] = 0.05  # 0: no validation, the last epoch is kept
    validation_block: Count = 1  # so many neighbouring examples stay together, e.g. the reviews of one film
    test_fraction: Annotated[float, Field(ge=0, lt=0.5)] = 0.0  # set aside for `evaluate`, where there is no other test
    validation_path: str | None = None  # other files to validate on, in place of a part of the training split
    validation_split: str | None = None  # or another split
    metric: Literal["accuracy", "f1", "matthews", "pearson", "spearman", "loss"] | None = None  # chooses the best epoch
    patience: Count | None = None  # epochs without a better one after which training stops
    seeds: Count = 1  # so many classifiers, with the seeds seed, seed + 1, ...; the best one in validation is kept

    @model_validator(mode="after")
    def check(self) -> "Finetune":
        is_classes = self.task in ("classification", "tokens")
        for key, value in (("label_smoothing", self.label_smoothing), ("class_weights", self.class_weights)):
            if value and not is_classes:
                raise ValueError(f"{key} is for classification and tokens, not for {self.task}")
        if isinstance(self.label_column, list) and self.task != "multi_label":
            raise ValueError("several label_column are for the task multi_label")
        if isinstance(self.label_column, list) and self.label_names not in (None, self.label_column):
            raise ValueError("several label_column name the labels themselves: leave label_names out")
        if self.micro_batch_size and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size is {self.batch_size}, no multiple of micro_batch_size ({self.micro_batch_size})"
            )
        if self.layer_decay != 1 and self.optimizer == "muon":
            raise ValueError("layer_decay is for adamw: every step of muon is of one size")
        if self.unlabelled is not None:
            if self.task != "classification":
                raise ValueError(f"unlabelled is for classification, not for {self.task}")
            longest = self.unlabelled.max_length
            if longest is not None and longest > self.max_length:
                raise ValueError(f"unlabelled.max_length is {longest}, longer than max_length ({self.max_length})")
        if self.text_pair_column is not None and self.task == "tokens":
            raise ValueError("text_pair_column is not for the task tokens")
        if self.metric is not None and self.metric not in METRICS[self.task]:
            raise ValueError(f"metric of {self.task} is one of {', '.join(METRICS[self.task])}, not {self.metric}")
        if self.patience is not None and not self.has_validation:
            raise ValueError("patience needs a validation part: validation_fraction is 0")
        return self

    @property
    def has_validation(self) -> bool:
        """Whether there is something to choose the best epoch on."""
        return bool(self.validation_fraction or self.validation_path or self.validation_split)

    @property
    def best_by(self) -> str:
        """What the best epoch is chosen by."""
        return self.metric or METRICS[self.task][0]


class Evaluate(Section):
    """What the finished classifier is measured on."""

    path: str | None = None  # none: finetune.path
    split: str | None = None  # none: test, or all of a single file
    limit: Count | None = None
    batch_size: Count = 64
    bag_of_words: bool = True  # also fit TF-IDF + logistic regression on the same examples


class Suite(Section):
    """Tasks that an encoder is compared on."""

    tasks: Annotated[list[Literal[GLUE]], Field(min_length=1)] = list(GLUE)  # of GLUE, which finetune.path holds


class Recipe(Section):
    """Everything a run needs."""

    output_dir: str
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    corpus: Corpus | None = None  # none: nothing is pretrained, a model from elsewhere is fine-tuned
    prepare: Prepare = Prepare()
    tokenizer: Tokenizer = Tokenizer()
    pairs: Pairs = Pairs()
    model: Model = Model()
    training: Training = Training()
    checkpoint: Checkpoint = Checkpoint()
    finetune: Finetune | None = None
    evaluate: Evaluate = Evaluate()
    suite: Suite = Suite()

    @model_validator(mode="after")
    def check(self) -> "Recipe":
        training, tuned = self.training, self.finetune
        if tuned is not None and tuned.test_fraction and (self.evaluate.path or self.evaluate.split):
            raise ValueError(
                "finetune.test_fraction is for texts that have no other test: leave evaluate.path and .split out"
            )
        own_model = tuned is not None and tuned.init in ("pretrained", "random")
        if self.corpus is None and (tuned is None or own_model):
            raise ValueError("key 'corpus' is missing; only where finetune.init names a model nothing is pretrained")
        if self.corpus is not None and training.max_steps is training.max_tokens is training.budget is None:
            raise ValueError("training needs max_steps, max_tokens or a budget such as 45m, or several of them")
        longest = max(phase.max_length for phase in self.training.phases)
        longest = max(longest, self.finetune.max_length if own_model else 0)
        if longest > self.model.max_position_embeddings:
            raise ValueError(
                f"model.max_position_embeddings is {self.model.max_position_embeddings}, but a max_length is {longest}"
            )
        modern, width = self.model.architecture == "modern", self.model.hidden_size / self.model.num_attention_heads
        if width % 1:
            raise ValueError("model.hidden_size must be a multiple of model.num_attention_heads")
        if modern and width % 2:
            raise ValueError(
                "model.hidden_size / model.num_attention_heads must be even where model.architecture is modern"
            )
        if own_model and self.finetune.pooling == "mean" and not modern:
            raise ValueError(
                "finetune.pooling is mean, which needs model.architecture modern; bert classifies its [CLS]"
            )
        return self


def seconds(duration: str) -> float:
    """Read a duration such as `90s`, `45m`, `1.5h` or `2d`, in seconds; raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", duration.strip())
    if not match or not float(match[1]):
        raise ValueError(f"{duration!r} is no duration: write 90s, 45m, 1.5h or 2d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
