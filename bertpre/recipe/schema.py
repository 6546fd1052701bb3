"""The recipe's schema: every key, its type, its default and its meaning.

The docstring under a field is its description: `bertpre show` prints it, and `recipes/schema.json` publishes it.
"""

import math
import re
from itertools import accumulate, pairwise
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from bertpre.errors import UserError

GlueTask = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
Fraction = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
HeldOutFraction = Annotated[float, Field(ge=0, lt=0.5)]
Decay = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=8)]
Rate = Annotated[float, Field(gt=0)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


def check_duration(value: object) -> str:
    """Return the duration as written; raises ValueError where `seconds` cannot read it, such as a number alone."""
    seconds(str(value))
    return str(value)


def check_repo_id(value: str) -> str:
    """Return a repository's name as written; raises ValueError where it is not OWNER/NAME."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", value):
        raise ValueError(f"{value!r} is not a repository: write OWNER/NAME, e.g. your-name/bert-mini")
    return value


def check_language(value: str) -> str:
    """Return a language's code as written; raises ValueError for what the Hub does not take for one."""
    if not re.fullmatch(r"[a-z]{2,3}|multilingual", value):
        raise ValueError(f"{value!r} is not a language's code: write en, ko, ..., or multilingual")
    return value


def check_project(value: str) -> str:
    """Return the name of a wandb project as written; raises ValueError for one that wandb refuses."""
    if not re.fullmatch(r"[^/\\#?%:]{1,128}", value):
        raise ValueError(f"{value!r} is not a project name: use 1 to 128 characters, none of / \\ # ? % :")
    return value


def null_as_auto(value: object) -> object:
    """`auto` for null, which older recipes say."""
    return "auto" if value is None else value


Duration = Annotated[str, BeforeValidator(check_duration)]
MicroBatchSize = Annotated[Literal["auto"] | Count, BeforeValidator(null_as_auto)]
RepoId = Annotated[str, AfterValidator(check_repo_id)]
Language = Annotated[str, AfterValidator(check_language)]


class Section(BaseModel):
    """A section of the recipe. An unknown key is an error.

    A message of a validator over several keys starts with one key of the section; loading puts the section before it.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Source(Section):
    """One source of pretraining text."""

    path: str
    """A Hub id, a local file, folder or pattern, or `sample` for the embedded corpus."""
    name: str | None = None
    """The configuration of a Hub dataset, e.g. 20231101.en."""
    split: str = "train"
    """The split to read; join several with +, e.g. train+unsupervised."""
    text_column: str = "text"
    """The column that holds the text."""
    limit: Count | None = None
    """Read only the first N documents of each split."""
    text_unit: Literal["line", "paragraph", "document"] = "line"
    """What one document is in a .txt file."""
    streaming: bool = False
    """Read a Hub dataset over the network, without a copy on disk."""
    weight: Rate = 1.0
    """0.25: a quarter of the documents, drawn by the seed. 3: each epoch passes over them three times."""

    @field_validator("weight")
    @classmethod
    def check_weight(cls, value: float) -> float:
        if value > 1 and value % 1:
            raise ValueError("must be a fraction of the documents, up to 1, or a whole number of passes")
        return value


class Corpus(Source):
    """The pretraining text."""

    more: list[Source] = []
    """Further sources; training mixes their documents with the others."""
    validation: str | None = None
    """Texts to validate on, which are never trained on: a split of `path`, or a file such as ./valid.txt. null: a
    fraction of the documents, pairs.validation_fraction."""
    held_out: str | None = None
    """Texts to drop from the corpus wherever they occur: a split of `path`, or a file such as ./test.csv."""
    min_characters: Count = 1
    """Drop documents shorter than this, in characters."""
    near_duplicates: bool = False
    """Drop near-duplicates too, not only exact duplicates; needs the extra `dedup`."""


class Prepare(Section):
    """How the corpus is processed. No key here changes the result."""

    engine: Literal["local", "ray"] = "local"
    """ray: use every node of a Ray cluster; needs the extra `ray`."""
    workers: Count | None = None
    """Number of local worker processes. null: as many as cores may be used."""


class Data(Section):
    """The prepared data."""

    path: str | None = None
    """Use the prepared data of this run directory, read-only and without a copy. null: prepare the run's own."""


class Tokenizer(Section):
    """The WordPiece tokenizer: learned from the corpus, or an existing one."""

    path: str | None = None
    """An existing tokenizer to use: a run directory, a folder or a Hub id. null: learn one from the corpus."""
    vocab_size: Annotated[int, Field(ge=64)] = 30528
    """Number of entries in the vocabulary, rounded down to a multiple of 64."""
    lowercase: bool = True
    """Convert text to lower case."""
    strip_accents: bool | None = None
    """Replace é with e. null: where lowercase is true, unless the text has many accents, or marks that are letters."""
    character_coverage: Share = 0.9999
    """Fraction of the text's characters that become tokens; a word with one of the others is unknown."""


class Pairs(Section):
    """How documents become segment pairs (Devlin et al. 2018, section 3.1 and appendix A.1)."""

    kind: Literal["nsp", "sop", "none"] = "nsp"
    """nsp: next-sentence prediction. sop: sentence-order prediction. none: no pairs, rows full of consecutive text."""
    short_seq_prob: Fraction = 0.1
    """Probability that a pair is shorter than the maximum length; without pairs (none) rows are full."""
    random_next_prob: Fraction = 0.5
    """Probability that segment B is random (nsp) or that the segments are swapped (sop)."""
    validation_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """Fraction of the documents kept for validation, never trained on; not used where corpus.validation names texts."""


class Model(Section):
    """The encoder's architecture and size."""

    architecture: Literal["bert", "modern"] = "bert"
    """bert: Devlin et al. 2018. modern: pre-LN, RoPE, GeGLU, no biases."""
    hidden_size: Count = 768
    """Width of the hidden states; a multiple of num_attention_heads."""
    num_hidden_layers: Count = 12
    """Number of encoder layers."""
    num_attention_heads: Count = 12
    """Number of attention heads per layer."""
    intermediate_size: Count = 3072
    """Width of the feed-forward layers."""
    max_position_embeddings: Count = 512
    """Maximum sequence length the model can read, in tokens."""
    hidden_dropout_prob: Dropout = 0.1
    """Dropout after embeddings, attention and feed-forward layers; in `modern`, after embeddings and within
    feed-forward layers."""
    attention_probs_dropout_prob: Dropout = 0.1
    """Dropout of the attention probabilities; in `modern`, also after attention."""


class Phase(Section):
    """A phase of pretraining at one sequence length."""

    share: Share = 1.0
    """Fraction of the whole training that this phase takes."""
    max_length: Length = 128
    """Tokens per example, special tokens included."""
    micro_batch_size: MicroBatchSize = "auto"
    """Examples per pass of one process. auto: on a GPU what fits in memory; on a CPU all, fewer if rows are short."""
    global_batch_size: Count | None = None
    """Overrides training.global_batch_size in this phase."""
    objective: Literal["masked", "causal", "mixed"] = "masked"
    """causal: predict every token from those before it; not in the last phase. mixed: both objectives by turns.
    causal and mixed need pairs.kind none."""


class Training(Section):
    """The pretraining loop. Fine-tuning, too, takes precision, compile, deterministic, adam_beta2, muon_weight_decay,
    max_grad_norm, log_every, the trackers and price_per_hour from here."""

    init: str | None = None
    """Start from this model: a run directory, folder or Hub id (bertpre, bert or modernbert). null: from scratch."""
    initial_attention: Literal["random", "neighbours"] = "random"
    """neighbours: heads of `bert` first attend to the tokens beside them; with muon the loss then falls earlier."""
    max_steps: Count | None = None
    """Maximum number of optimizer steps. Training ends at the first limit reached: steps, tokens, epochs or budget."""
    max_tokens: Count | None = None
    """Maximum number of tokens, padding not counted."""
    max_epochs: Rate | None = None
    """Maximum number of times that the training text is read, e.g. 40; in tokens, special ones included."""
    budget: Duration | None = None
    """Wall-clock limit, e.g. 45m; includes the final evaluation."""
    global_batch_size: Count = 256
    """Examples per optimizer step, over all processes."""
    phases: Annotated[list[Phase], Field(min_length=1)] = [Phase()]
    """Phases of training, in order, each with its own sequence length."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic type. auto: bf16 where the hardware multiplies it, else fp16 (GPU) or fp32 (CPU)."""
    compile: Literal["auto"] | bool = "auto"
    """Use torch.compile. auto: where a compiler is installed and the training is long enough."""
    deterministic: Literal["auto"] | bool = "auto"
    """Make runs bit-identical on the same machine. auto: on CPUs only."""
    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    """muon: for the hidden matrices, with adamw for everything else."""
    learning_rate: Rate = 1e-4
    """Peak learning rate of adamw or lamb; with muon, of all but the hidden matrices."""
    weight_decay: Decay = 0.01
    """Weight decay of adamw or lamb."""
    muon_learning_rate: Rate = 0.02
    """Peak learning rate of the hidden matrices, with optimizer muon."""
    muon_weight_decay: Decay = 0.1
    """Weight decay of the hidden matrices; with far less, the output of the first layer grows without bound."""
    adam_beta2: Probability = 0.999
    """Decay rate of the second moment, beta2."""
    max_grad_norm: Rate = 1.0
    """Clip the gradient to this norm."""
    schedule: Literal["linear", "cosine", "trapezoid"] = "linear"
    """Shape of the learning rate after warm-up; trapezoid: constant, then linear to zero."""
    warmup: Fraction = 0.01
    """Fraction of the training during which the learning rate rises."""
    decay: Share = 0.5
    """With trapezoid: fraction of the training during which the learning rate falls to zero."""
    masked_lm_prob: Probability = 0.15
    """Fraction of the tokens to predict."""
    masked_lm_prob_end: Probability | None = None
    """masked_lm_prob falls linearly to this value. null: it stays constant."""
    masking: Literal["tokens", "words", "spans"] = "tokens"
    """The unit of masking; spans are runs of whole words."""
    mask_split: tuple[Fraction, Fraction, Fraction] = (0.8, 0.1, 0.1)
    """Fractions of the targets shown as [MASK], as a random token, and unchanged."""
    log_every: Count = 20
    """Steps between log lines."""
    eval_every: Count = 500
    """Steps between validations."""
    eval_pairs: Count = 1024
    """Maximum number of validation examples."""
    wandb_project: Annotated[str, AfterValidator(check_project)] | None = None
    """Log to this Weights & Biases project."""
    tensorboard: bool = False
    """Write TensorBoard event files too; needs the extra `tensorboard`."""
    price_per_hour: Rate | None = None
    """Price of the machine per hour; the log then shows the cost so far."""

    @model_validator(mode="after")
    def check(self) -> "Training":
        if self.masked_lm_prob_end is not None and self.masked_lm_prob_end > self.masked_lm_prob:
            raise ValueError(f"masked_lm_prob_end: must not be above masked_lm_prob ({self.masked_lm_prob})")
        if abs(sum(self.mask_split) - 1) > 1e-6:
            raise ValueError("mask_split: the three fractions must add up to 1")
        if abs(sum(phase.share for phase in self.phases) - 1) > 1e-6:
            raise ValueError("phases: the shares must add up to 1")
        if self.phases[-1].objective == "causal":
            raise ValueError("phases: the last one must have the objective masked or mixed: the model predicts masks")
        for number, phase in enumerate(self.phases):
            size, micro = self.batch_size(phase), phase.micro_batch_size
            if micro != "auto" and size % micro:
                key = "global_batch_size" if phase.global_batch_size is None else f"phases.{number}.global_batch_size"
                raise ValueError(f"{key}: must be a multiple of micro_batch_size ({micro}), not {size}")
        return self

    def batch_size(self, phase: Phase) -> int:
        """The examples of a step in a phase, over all processes."""
        return phase.global_batch_size or self.global_batch_size

    @property
    def reached_phases(self) -> list[bool]:
        """For each phase whether one of `max_steps` steps begins in it; without that limit all count as reached."""
        if self.max_steps is None:
            return [True] * len(self.phases)
        starts = [0.0, *accumulate(phase.share for phase in self.phases)]
        first_steps = [math.ceil((start - 1e-9) * self.max_steps) for start in (*starts[:-1], 1.0)]
        return [first < after for first, after in pairwise(first_steps)]

    def predicted_share(self, phase: Phase) -> float:
        """The share of a row's tokens that are predicted in a phase."""
        shares = {"masked": self.masked_lm_prob, "causal": 1.0, "mixed": (1 + self.masked_lm_prob) / 2}
        return shares[phase.objective]


class Checkpoint(Section):
    """What is saved during pretraining, so that an interrupted run can resume."""

    every: Count = 1000
    """Steps between checkpoints, which are at most half an hour apart."""
    keep: Count = 2
    """Number of newest checkpoints to keep."""
    keep_every: Duration | None = None
    """Also keep the first checkpoint of each period of training of this length, e.g. 6h."""


class Hub(Section):
    """Automatic pushes to the Hub during `pretrain` and `run`."""

    repo_id: RepoId | None = None
    """The repository, you/your-model, to which the result is pushed at the end. null: none."""
    push_every: Count | None = None
    """Also push the model in training every so many steps, in the background. null: only at the end."""
    private: bool = False
    """Create it as private; an existing public one is refused."""
    license: str = "unknown"
    """The licence on the model card, e.g. mit."""
    language: Language | None = None
    """The language of the texts on the model card, e.g. en or ko. null: none, except for the embedded corpus."""

    @model_validator(mode="after")
    def check(self) -> "Hub":
        if self.push_every is not None and self.repo_id is None:
            raise ValueError("push_every: there is no repository to push to; set hub.repo_id")
        return self


METRICS = {  # the first one selects the best epoch where the recipe does not say
    "classification": ("accuracy", "f1", "matthews", "loss"),
    "multi_label": ("f1", "accuracy", "loss"),
    "regression": ("pearson", "spearman", "loss"),
    "tokens": ("f1", "accuracy", "loss"),
}


class Unlabelled(Section):
    """Unlabelled texts to learn from: an NB-SVM, fitted on the labelled texts, gives them labels."""

    path: str | None = None
    """As finetune.path. null: finetune.path itself."""
    split: str = "train"
    """The split to read."""
    limit: Count | None = None
    """Maximum number of texts."""
    held_out: str | None = None
    """Texts to leave out: a split of finetune.path, e.g. test, or a file such as ./test.csv."""
    max_length: Length | None = None
    """Maximum number of tokens per text. null: finetune.max_length."""


class Finetune(Section):
    """The labelled examples and how a model is fine-tuned on them."""

    path: str
    """As corpus.path."""
    name: str | None = None
    """The configuration of a Hub dataset."""
    split: str = "train"
    """The split to train on."""
    task: Literal["classification", "multi_label", "regression", "tokens"] = "classification"
    """tokens: one label per word."""
    text_column: str = "text"
    """The column with the text; for tokens: the words, as a list or separated by spaces."""
    text_pair_column: str | None = None
    """The column with the second text of a pair."""
    label_column: str | Annotated[list[str], Field(min_length=2)] = "label"
    """The column with the label. A list: one column of 0 and 1 per label."""
    label_names: list[str] | None = None
    """Names of the classes, in order. null: the dataset's own names, or the values found."""
    limit: Count | None = None
    """Maximum number of labelled examples."""
    unlabelled: Unlabelled | None = None
    """Learn from these texts too."""
    init: str = "pretrained"
    """pretrained: this run's model. random: no pretraining. Or a run directory, folder or Hub id of any encoder."""
    epochs: Count = 3
    """Number of passes over the training examples."""
    min_steps: Count | None = None
    """Minimum number of optimizer steps; few examples get more epochs. null: as many as `epochs` makes."""
    batch_size: Count = 32
    """Examples per optimizer step, over all processes."""
    micro_batch_size: MicroBatchSize = "auto"
    """Examples per forward pass of one process. auto: on a GPU as many as fit in memory, on a CPU all."""
    max_length: Length = 256
    """Maximum number of tokens per example."""
    truncation: Literal["head", "tail", "head_tail"] = "head_tail"
    """Which part of a long text is kept; head_tail: a quarter from the start, the rest from the end. tokens: always
    the head."""
    pooling: Literal["cls", "mean"] | None = None
    """What the classifier reads: the [CLS] state, or the mean of all states. null: as the model says; own ones, cls."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: for the hidden matrices, with adamw for everything else."""
    learning_rate: Rate = 3e-5
    """Peak learning rate of adamw."""
    muon_learning_rate: Rate = 5.0e-3
    """Peak learning rate of the hidden matrices, with optimizer muon."""
    layer_decay: Share = 1.0
    """Factor on the learning rate from each layer to the layer below it."""
    weight_decay: Decay = 0.01
    """Weight decay of adamw; that of muon is training.muon_weight_decay."""
    warmup: Fraction = 0.1
    """Fraction of the training during which the learning rate rises."""
    dropout: Dropout = 0.1
    """Dropout before the last linear layer."""
    encoder_dropout: Dropout | None = None
    """Dropout in the encoder's layers. null: as in pretraining."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability mass spread evenly over all classes."""
    class_weights: Literal["balanced"] | list[Rate] | None = None
    """Weights of the classes in the loss; balanced: inversely proportional to class frequency."""
    validation_fraction: HeldOutFraction = 0.05
    """Fraction of the training split kept for validation, stratified by label. 0: none, the last epoch is kept."""
    validation_block: Count = 1
    """Number of neighbouring examples that are correlated and stay together, e.g. the reviews of one film."""
    test_fraction: HeldOutFraction = 0.0
    """Fraction set aside for `evaluate`, stratified by label, where there is no other test set."""
    validation_path: str | None = None
    """Other files to validate on, instead of a part of the training split."""
    validation_split: str | None = None
    """Another split to validate on."""
    metric: Literal["accuracy", "f1", "matthews", "pearson", "spearman", "loss"] | None = None
    """Selects the best epoch. null: the first metric of the task."""
    patience: Count | None = None
    """Stop after this many epochs without improvement."""
    seeds: Count = 1
    """Number of classifiers to train, with seeds seed, seed + 1, ...; the best one in validation is kept."""

    @model_validator(mode="after")
    def check(self) -> "Finetune":
        self.check_labels()
        if self.micro_batch_size != "auto" and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size: must be a multiple of micro_batch_size ({self.micro_batch_size}), not {self.batch_size}"
            )
        if self.layer_decay != 1 and self.optimizer == "muon":
            raise ValueError("layer_decay: is for adamw only; muon's steps all have the same size")
        columns = [self.text_column, self.text_pair_column, *self.label_columns]
        if repeated := [name for number, name in enumerate(columns) if name and name in columns[:number]]:
            raise ValueError(f"text_column: {repeated[0]!r} is named for two of text, second text and label")
        if self.text_pair_column is not None and self.task == "tokens":
            raise ValueError("text_pair_column: is not for the task tokens")
        if self.metric is not None and self.metric not in METRICS[self.task]:
            raise ValueError(f"metric: for {self.task} use one of {', '.join(METRICS[self.task])}, not {self.metric}")
        for key, value in (("metric", self.metric), ("patience", self.patience)):
            if value is not None and not self.has_validation:
                raise ValueError(f"{key}: needs a validation part, but validation_fraction is 0")
        return self

    def check_labels(self) -> None:
        """Raise ValueError for label settings that do not suit the task."""
        for key, value in (("label_smoothing", self.label_smoothing), ("class_weights", self.class_weights)):
            if value and self.task not in ("classification", "tokens"):
                raise ValueError(f"{key}: is for classification and tokens, not for {self.task}")
        if self.label_names and self.task == "regression":
            raise ValueError("label_names: a regression has no classes")
        if isinstance(self.label_column, list) and self.task != "multi_label":
            raise ValueError("label_column: a list of columns is for the task multi_label")
        if isinstance(self.label_column, list) and self.label_names not in (None, self.label_column):
            raise ValueError("label_names: leave it out, the columns in label_column name the labels")
        for key, names in (("label_names", self.label_names or []), ("label_column", self.label_columns)):
            if repeated := [name for number, name in enumerate(names) if name in names[:number]]:
                raise ValueError(f"{key}: {repeated[0]!r} is there twice")
        if self.unlabelled is not None and self.task != "classification":
            raise ValueError(f"unlabelled: is for classification, not for {self.task}")
        if self.unlabelled is not None and (self.unlabelled.max_length or 0) > self.max_length:
            raise ValueError(f"unlabelled.max_length: must not be above max_length ({self.max_length})")

    @property
    def has_validation(self) -> bool:
        """Whether there is a validation part to select the best epoch on."""
        return bool(self.validation_fraction or self.validation_path or self.validation_split)

    @property
    def label_columns(self) -> list[str]:
        """`label_column` as a list."""
        return self.label_column if isinstance(self.label_column, list) else [self.label_column]

    @property
    def best_by(self) -> str:
        """The metric that selects the best epoch."""
        return self.metric or METRICS[self.task][0]

    @property
    def uses_recipe_model(self) -> bool:
        """Whether the encoder has the recipe's own architecture, pretrained or random."""
        return self.init in ("pretrained", "random")


class Evaluate(Section):
    """The test set."""

    path: str | None = None
    """As corpus.path. null: finetune.path."""
    split: str | None = None
    """The split to measure on. null: test, or all of a single file."""
    limit: Count | None = None
    """Maximum number of test examples."""
    batch_size: Count = 64
    """Maximum number of examples per forward pass; on a CPU also limited to 4,096 tokens, which is faster."""
    bag_of_words: bool = True
    """For classification: also fit TF-IDF + logistic regression on the same examples. `baseline` has other tasks."""


class Suite(Section):
    """GLUE tasks to compare an encoder on."""

    tasks: Annotated[list[GlueTask], Field(min_length=1)] = list(get_args(GlueTask))
    """The tasks to run; finetune.path holds their data."""


class Recipe(Section):
    """Everything a run needs."""

    output_dir: Annotated[str, Field(min_length=1)]
    """The run directory: a new folder."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything random."""
    corpus: Corpus | None = None
    """The pretraining text. null: nothing is pretrained; an existing model is fine-tuned."""
    prepare: Prepare = Prepare()
    data: Data = Data()
    tokenizer: Tokenizer = Tokenizer()
    pairs: Pairs = Pairs()
    model: Model = Model()
    training: Training = Training()
    checkpoint: Checkpoint = Checkpoint()
    finetune: Finetune | None = None
    evaluate: Evaluate = Evaluate()
    suite: Suite = Suite()
    hub: Hub = Hub()

    @model_validator(mode="after")
    def check(self) -> "Recipe":
        tuned = self.finetune
        if tuned is not None and tuned.test_fraction and (self.evaluate.path or self.evaluate.split):
            other = "evaluate.path" if self.evaluate.path else "evaluate.split"
            raise ValueError(
                f"finetune.test_fraction: sets {tuned.test_fraction:.0%} of the labelled texts aside for testing, and "
                f"{other} names a test set too; to test on that one, fine-tune with finetune.test_fraction=0, else "
                f"set {other}=null (`bertpre predict` reads any file)"
            )
        if self.corpus is None and (tuned is None or tuned.uses_recipe_model):
            raise ValueError("corpus: is missing; give corpus.path, or name an existing model in finetune.init")
        training = self.training
        limits = (training.max_steps, training.max_tokens, training.max_epochs, training.budget)
        if self.corpus is not None and not any(limits):
            raise ValueError(
                "training: give max_steps, max_tokens, max_epochs or a budget such as 45m, or several of them"
            )
        self.check_model()
        return self

    @property
    def required_finetune(self) -> Finetune:
        """The finetune section; raises UserError if there is none."""
        if self.finetune is None:
            raise UserError("finetune: the recipe has no such section; name the labelled texts with finetune.path=...")
        return self.finetune

    @property
    def untrained_from(self) -> int | None:
        """The first position of `bert` that no phase of pretraining trains, or None where all are trained."""
        training = self.training
        reached = zip(training.phases, training.reached_phases, strict=True)
        longest = max(phase.max_length for phase, is_reached in reached if is_reached)
        is_drawn = self.model.architecture == "bert" and self.training.init is None
        return longest if is_drawn and longest < self.model.max_position_embeddings else None

    def check_model(self) -> None:
        """Raise ValueError for a model whose sizes do not fit each other or its use."""
        model, tuned = self.model, self.finetune
        modern, width = model.architecture == "modern", model.hidden_size / model.num_attention_heads
        if self.training.initial_attention == "neighbours" and (modern or self.training.init):
            raise ValueError(
                "training.initial_attention: neighbours is for model.architecture bert from scratch; set it to random "
                "for modern, which has rotary positions, and with training.init, which brings its own weights"
            )
        for number, phase in enumerate(self.training.phases):
            if phase.objective != "masked" and self.pairs.kind != "none":
                raise ValueError(
                    f"training.phases.{number}.objective: {phase.objective} needs pairs.kind none: a pair is judged by "
                    "[CLS], which then sees no other token; for pairs leave the phase out, e.g. "
                    "training.phases=[{share: 1.0, max_length: 128}]"
                )
        lengths = {f"training.phases.{number}": phase.max_length for number, phase in enumerate(self.training.phases)}
        if tuned is not None and tuned.uses_recipe_model:
            lengths["finetune"] = tuned.max_length
            if tuned.pooling == "mean" and not modern:
                raise ValueError("finetune.pooling: mean needs model.architecture modern; bert classifies its [CLS]")
        for section, length in lengths.items():
            if length > model.max_position_embeddings:
                raise ValueError(
                    f"{section}.max_length: is {length}, but model.max_position_embeddings is only "
                    f"{model.max_position_embeddings}"
                )
        if width % 1:
            raise ValueError("model.hidden_size: must be a multiple of model.num_attention_heads")
        if modern and width % 2:
            raise ValueError(
                "model.hidden_size: divided by model.num_attention_heads must be even for model.architecture modern"
            )


def seconds(duration: str) -> float:
    """Read a duration such as `90s`, `45m`, `1.5h` or `2d`, in seconds; raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", duration.strip())
    if not match or not float(match[1]):
        raise ValueError(f"{duration!r} is not a duration: write 90s, 45m, 1.5h or 2d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
